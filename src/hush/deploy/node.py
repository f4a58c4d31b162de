"""What a member answers: its policy decides, its ledger is charged first, its own plan sets the noise.

Nothing that a task says changes a rate, a noise or a number of steps: the member computes them from the config that it
agreed to when the run began. What it will not do it refuses in words that the coordinator sees, and charges nothing.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hush import models, recipes
from hush.config import Config, parse
from hush.data.datasets import Dataset
from hush.deploy import enrolled, keys, rows, wire
from hush.deploy.asked import checked
from hush.deploy.audit import Trail
from hush.deploy.declare import Telling, group, numbers
from hush.deploy.enrolled import Own
from hush.deploy.facts import BUDGET, IMPACT, Fact
from hush.deploy.policy import MemberPolicy, check_imports, check_offer, check_plans
from hush.deploy.wire import Letter, want
from hush.engines import answer
from hush.local.train import train
from hush.models import Model
from hush.privacy import noise
from hush.privacy.cost import Cost, from_json
from hush.privacy.course import ENROLMENT, Stage
from hush.privacy.ledger import BudgetSpentError, Ledger, balance
from hush.privacy.ledger.book import RESERVED
from hush.privacy.ledger.ledger import inspect
from hush.recipes import Recipe
from hush.recipes.protect import CENTRE
from hush.recipes.weigh import COUNT
from hush.server.rundir import write_atomically
from hush.types import HushError, Receipt, Task

TASK_CAP = 1 << 30
DECLARED = (COUNT, BUDGET, IMPACT, CENTRE)


class Node:
    """A member at work."""

    def __init__(
        self, name: str, policy: MemberPolicy, data: Dataset, ledger: Ledger, path: Path, key: keys.PrivateKey
    ) -> None:
        self.name, self.policy, self.data, self.ledger = name, policy, data, ledger
        self.trail = Trail(path / "audit.jsonl")
        self._ledger_path = path / "ledger.db"
        self._runs = path / "runs"
        self._runs.mkdir(exist_ok=True)
        self._key = key
        self._own: dict[str, tuple[str, Own]] = {}
        self._fitting: set[str] = set()
        self._held: tuple[object, Tensor] | None = None
        self.members, self.seconds = 1, 0.0

    def handle(self, content: bytes) -> tuple[bytes, Receipt | None]:
        """The signed answer to a message, and the receipt to note as sent once it is."""
        says: Mapping[str, Any] = {}
        try:
            letter = wire.decode(content, TASK_CAP)
            says = letter.says
            return self._answer(letter)
        except OSError:
            # The disk is not the coordinator's doing, nor its business.
            raise
        except Exception as error:  # whatever it is that a coordinator says, it ends no member
            reason = str(error) if isinstance(error, HushError) else f"a message that makes no sense: {error!r}"
            final = isinstance(error, BudgetSpentError)
            run, number = str(says.get("run", ""))[:80], says.get("round", 0)
            try:
                self.trail.note("refused", run=run, round=number, reason=reason, final=final, **self.balance())
            except HushError:
                # The disk or the ledger has failed: what happened first is what the member must hear.
                raise error from None
            return self._signed(Letter("no", {"run": run, "reason": reason[:500], "final": final})), None

    def _answer(self, letter: Letter) -> tuple[bytes, Receipt | None]:
        if letter.kind == "enrol":
            return self._enrol(letter)
        if letter.kind == "begin":
            return self._begin(letter), None
        if letter.kind == "task":
            return self._task(letter)
        raise HushError(f"message: unknown kind {letter.kind[:40]!r}; accepted: enrol, begin, task")

    def _enrol(self, letter: Letter) -> tuple[bytes, Receipt | None]:
        """Whether this member would take part, and what it declares: the same however often it is asked."""
        run, raw, code, schema, number, head = want(letter, "run", "config", "code", "schema", "number", "head")
        config = parse(raw)
        check_imports(self.policy, config)
        name, recipe = recipes.parse(config.recipe, config.mode)
        check_offer(self.policy, config, name, recipe, code)
        rows.check_schema(self.data, schema["shape"], schema["classes"])
        self.ledger.check_head(head)
        self._state(run)
        telling = self._telling(config, recipe, number, int(schema["classes"]))
        costs = telling.costs()
        if not costs:
            return self._facts(run, name, telling, self.ledger.head), None
        attempt = self.ledger.next_attempt(run, ENROLMENT)
        if attempt == 0:
            kept = self.ledger.sealed(run, ENROLMENT)
            if kept is None:
                raise HushError("enrolment: what was told of this run is noised, was sent before, and is not kept")
            self.trail.note("resent", run=run, round=ENROLMENT)
            return kept[1], kept[0]
        self._affordable(run, costs)

        def make(receipt: Receipt) -> bytes:
            return self._facts(run, name, telling, receipt.head)

        return self._released(run, ENROLMENT, costs, attempt, make)

    def _facts(self, run: str, recipe: str, telling: Telling, head: str) -> bytes:
        fact, tensors = telling.drawn()
        self.trail.note("enrolled", run=run, recipe=recipe, declared=asdict(fact), **self.balance())
        return self._signed(Letter("facts", {"run": run, **asdict(fact), "head": head}, tensors))

    def _telling(self, config: Config, recipe: Recipe, number: int, classes: int) -> Telling:
        """What this member is to say of itself for a run, with the noise that its own course has for it."""
        if type(number) is not int or not 0 <= number < config.data.clients:
            raise HushError(f"enrolment: number {number!r:.20} of {config.data.clients} members")
        fact = Fact(
            self.name, **asdict(self.policy.one_run), samples=len(self.data.y), group=group(self.policy, recipe)
        )
        noisy = centre = 0.0
        model = models.build(config.model, tuple(self.data.x.shape[1:]), classes, config.seed)
        if recipe.outline(config.rounds).of[ENROLMENT] >= 0:
            course, stage = enrolled.enrolment(config, fact, number, self.policy.one_run)
            # What enrolment asks is charged before the run begins: so not for a run that would be refused then.
            check_plans(self.policy, course)
            noisy, centre = (stage.noise_of(what) if stage is not None else 0.0 for what in (COUNT, CENTRE))
            if centre:
                enrolled.width_of(model)
        replayed = config.privacy.noise != "secure"
        first, second = (
            noise.replayable(config.seed, number, ENROLMENT) if replayed and asked else noise.secure()
            for asked in (noisy > 0, True)
        )
        # The simulation draws a count before the mean.
        second.normal(1, torch.float64)
        wanted = numbers(self.policy, len(self.data.y), recipe, noisy)
        return Telling(fact, wanted, centre, lambda: self._inputs(config, model), first, second)

    def _inputs(self, config: Config, model: Model) -> Tensor:
        """The rows as a run's model takes them; those of one run at a time are kept."""
        kind = (config.model.model_dump_json(), config.data.rows, config.seed)
        if self._held is None or self._held[0] != kind:
            x = torch.from_numpy(enrolled.shaped(self.data, config).x)
            self._held = (kind, x if model.features is None else model.features(x))
        return self._held[1]

    def _begin(self, letter: Letter) -> bytes:
        """Agree to a run as a whole. From now on its config is fixed."""
        run, client, roster, *_ = want(letter, "run", "client", "roster", "config", "code", "schema", "centre", "head")
        own, facts = self._computed(letter.says)
        if type(client) is not int or facts[client].name != self.name:
            raise HushError(f"begin: the roster does not have {self.name} as number {client}")
        declared, one = facts[client], self.policy.one_run
        budget = one.epsilon if BUDGET not in declared.noised else declared.epsilon
        if (declared.epsilon, declared.delta, declared.relation) != (budget, one.delta, one.relation):
            raise HushError("begin: the roster has another budget for this member than it declared")
        if set(declared.costs()) != {cost for cost in self._charged(run) if cost.what in DECLARED}:
            raise HushError("begin: the roster has other noise for this member than it was charged for")
        check_plans(self.policy, own.course)
        agreed = json.dumps(dict(letter.says, head=""), sort_keys=True)
        path = self._state(run)
        if path.exists() and path.read_text(encoding="utf-8") != agreed:
            raise HushError("begin: this run has begun with another config, roster or code")
        first = next(stage for stage in own.course.stages if stage.ask.train)
        if self._charged(run) == () and not self.ledger.affords(first.costs()):
            raise BudgetSpentError(f"client {self.name}: not one round fits what is left of the budget")
        if not path.exists():
            write_atomically(path, agreed.encode())
        self._own[run] = (agreed, own)
        self._approve(run, own)
        self.members = len(roster)
        self.trail.note("began", run=run, client=client, members=len(roster), **self.balance())
        return self._signed(Letter("ready", {"run": run, "head": self.ledger.head}))

    def _computed(self, says: Mapping[str, Any]) -> tuple[Own, list[Fact]]:
        config = parse(says["config"])
        check_imports(self.policy, config)
        name, recipe = recipes.parse(config.recipe, config.mode)
        check_offer(self.policy, config, name, recipe, says["code"])
        rows.check_schema(self.data, says["schema"]["shape"], says["schema"]["classes"])
        self.ledger.check_head(says["head"])
        if config.local.lr == "auto":
            raise HushError("begin: local.lr is still open; accepted: a number")
        facts = [Fact(**fact) for fact in says["roster"]]
        own = enrolled.own(
            config, facts, says["client"], self.data, self.policy.one_run, int(says["schema"]["classes"])
        )
        mine = facts[own.client]
        if COUNT not in mine.noised and mine.samples != len(self.data.y):
            raise HushError("begin: the roster has another number of rows for this member than it has now")
        if enrolled.tells_centre(recipe, config.rounds) != bool(says["centre"]):
            raise HushError("begin: a centre that the recipe does not have, or none where it has one")
        return replace(own, centre=str(says["centre"])), facts

    def _agreed(self, run: str) -> Own:
        """The run that was agreed to, from memory or from the file that outlives this process."""
        if run not in self._own:
            path = self._state(run)
            if not path.exists():
                raise HushError("task: this member has not agreed to that run")
            agreed = path.read_text(encoding="utf-8")
            own, _ = self._computed(json.loads(agreed))
            check_plans(self.policy, own.course)
            self._own[run] = (agreed, own)
            self._approve(run, own)
        return self._own[run][1]

    def _task(self, letter: Letter) -> tuple[bytes, Receipt | None]:
        """Reserve, train, seal; or the same bytes again for the same task."""
        run, number, head = want(letter, "run", "round", "head")
        own = self._agreed(run)
        if type(number) is not int or not 1 <= number <= len(own.rounds) or own.client not in own.rounds[number - 1]:
            raise HushError(f"task: this member has no part in round {number!r:.20}")
        self.ledger.check_head(head)
        task = checked(own, letter, number, self.policy.bounds)
        asked = wire.digest(Letter("task", {"run": run, "round": number}, letter.tensors))
        stage = own.course.stages[own.outline.of[number]]
        attempt = self.ledger.next_attempt(run, number)
        if attempt == 0:
            return self._again(run, number, asked)
        self._affordable(run, stage.costs(), own)

        def make(receipt: Receipt) -> bytes:
            began = time.perf_counter()
            payload = self._trained(own, task, stage, receipt, asked)
            self.seconds = time.perf_counter() - began
            return payload

        return self._released(run, number, stage.costs(), attempt, make)

    def _released(
        self, run: str, number: int, costs: tuple[Cost, ...], attempt: int, make: Callable[[Receipt], bytes]
    ) -> tuple[bytes, Receipt]:
        """Charge, then make what is released, and seal it."""
        receipt = self.ledger.reserve_costs(costs, run, number, attempt)
        self.trail.note("charged", run=run, round=number, attempt=attempt, costs=[asdict(cost) for cost in costs])
        try:
            payload = make(receipt)
            self.ledger.seal(receipt, payload)
            return payload, receipt
        except BaseException:
            # Nothing was released, but what was charged stays charged.
            self.ledger.burn(receipt)
            raise

    def _trained(self, own: Own, task: Task, stage: Stage, receipt: Receipt, asked: str) -> bytes:
        config = own.config
        source = answer.source(own.recipe, config, own.client, task.round)
        x, y = self._inputs(config, own.model), torch.from_numpy(self.data.y)
        client = answer.Client(own.recipe, config, own.model, x, y, 0, source, own.output)
        done = answer.work(task, receipt, stage, client)
        limit = None if config.engine.physical_batch == "auto" else config.engine.physical_batch
        (vector,) = train(own.model, x, y, [done.job], limit, config.engine.precision)
        update = answer.sealed(done, vector)
        says = {
            "run": receipt.run, "round": task.round, "client": self.name, "serial": receipt.serial,
            "head": receipt.head, "asked": asked, "notes": dict(update.notes),
        }  # fmt: skip
        return self._signed(Letter("update", says, {"vector": update.vector}))

    def _again(self, run: str, number: int, asked: str) -> tuple[bytes, Receipt | None]:
        kept = self.ledger.sealed(run, number)
        if kept is None:
            raise HushError(f"task: round {number} was answered, and its bytes are not kept any more")
        receipt, payload = kept
        before = wire.decode(keys.opened(self._key.public_key(), payload), TASK_CAP).says["asked"]
        if before != asked:
            raise HushError(f"task: round {number} was answered for another model; nothing more is released for it")
        self.trail.note("resent", run=run, round=number)
        return payload, receipt

    def _charged(self, run: str) -> tuple[Cost, ...]:
        found, _ = inspect(self._ledger_path)
        return tuple(cost for row in found if row.kind == RESERVED and row.run == run for cost in from_json(row.detail))

    def _affordable(self, run: str, costs: tuple[Cost, ...], own: Own | None = None) -> None:
        """Raise `BudgetSpentError` if this run would spend more than the policy gives to one run."""
        policy = self.policy.one_run
        wanted = balance.plus({}, (*self._charged(run), *costs))
        if own is not None and run in self._fitting and balance.within(wanted, balance.plus({}, own.costs())):
            return
        spent = balance.epsilon(wanted, policy, self.policy.budget.accountant)
        if not balance.fits(spent, policy):
            raise BudgetSpentError(
                f"client {self.name}: epsilon {spent:.4g} in this run would exceed the {policy.epsilon:.4g} of one run"
            )

    def _approve(self, run: str, own: Own) -> None:
        """Compute once what all of the run costs: if that fits, no single round needs to be computed again."""
        policy, whole = self.policy.one_run, balance.plus({}, own.costs())
        if balance.fits(balance.epsilon(whole, policy, self.policy.budget.accountant), policy):
            self._fitting.add(run)
        charged = balance.plus({}, self._charged(run))
        rest = {key: max(0, steps - charged.get(key, 0)) for key, steps in whole.items()}
        with contextlib.suppress(BudgetSpentError):
            self.ledger.approve_costs(
                Cost("rest", kind, spread, steps, rate, samples, batch)
                for (kind, spread, rate, samples, batch), steps in rest.items()
            )

    def balance(self) -> dict[str, float]:
        """What is spent and left, for the trail."""
        return {"spent": round(self.ledger.spent(), 6), "left": round(self.ledger.left(), 6)}

    def _state(self, run: str) -> Path:
        if not isinstance(run, str) or not run.isascii() or not run.isalnum() or len(run) > 64:
            raise HushError(f"run {run!r:.40}: accepted: letters and digits")
        return self._runs / f"{run}.json"

    def _signed(self, letter: Letter) -> bytes:
        return keys.signed(self._key, wire.encode(letter))
