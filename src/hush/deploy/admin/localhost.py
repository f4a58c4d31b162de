"""A whole federation on localhost: SuperLink, members and coordinator, each a process of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from hush import recipes
from hush.config import Config
from hush.data.datasets import from_arrays
from hush.data.schema import Schema
from hush.data.schema import read as read_schema
from hush.deploy.admin import folders as places
from hush.deploy.admin.folders import FederationFolder
from hush.deploy.admin.processes import Program, free_port, stopping
from hush.deploy.coordinator.exchange import Transport
from hush.deploy.coordinator.run import Coordinator, Progress
from hush.deploy.member import datasets
from hush.deploy.member.policy_template import template
from hush.deploy.member.synthetic import synthetic_rows, write_rows
from hush.engines.setup import Federation, prepare
from hush.recipes.slots.clusters import Oracle
from hush.types import HushError, RunResult

RUN = "run"
_TEST_ROWS = 200  # synthetic ones, where no test set is given
_HELD_OUT = 0.2  # of the rows of each member, where the config evaluates


def make(
    path: Path, config: Config, *, times: dict[str, float] | None = None, data: str | None = None,
    host: str = "127.0.0.1",
) -> FederationFolder:  # fmt: skip
    """Create the folders of a federation whose members hold the client data of a simulation."""
    federation = prepare(config, root=data)
    if any(federation.data.phase(number) != federation.data.phase(1) for number in range(2, config.rounds + 1)):
        raise HushError("data.partition: data that changes between rounds cannot be used in a federation")
    names = [f"m{client:03d}" for client in range(len(federation.members))]
    made = places.create(path, names, f"{host}:{free_port(host)}", times=times)
    accountant = federation.schedules[0].plan.accountant
    for member, name in zip(federation.members, names, strict=True):
        words = template(
            member.policy.epsilon, member.policy.delta, member.policy.relation, [federation.recipe_name],
            accountant=accountant, seeded=config.privacy.noise == "seeded", uncovered=True,
            group=member.group if isinstance(federation.recipe.assign, Oracle) else None,
            auto_approve=True, max_cpu=1.0, runs_per_day=1000, held_out=_HELD_OUT if config.evaluation.share else 0.0,
        )  # fmt: skip
        (path / "kits" / name / "policy.toml").write_text(words)
    _hand_out(path, federation, names)
    return made


def _hand_out(path: Path, federation: Federation, names: Sequence[str]) -> None:
    x, y = federation.data.arrays(1)
    tests = []
    for (first, split, end), name in zip(federation.data.bounds(), names, strict=True):
        np.savez(path / "kits" / name / "data.npz", x=x[first:split], y=y[first:split])
        tests.append(np.arange(split, end))
    rows = np.concatenate(tests)
    np.savez(path / "test.npz", x=x[rows], y=y[rows])


def start(place: FederationFolder, programs: list[Program], members: Sequence[str] | None = None) -> dict[str, Program]:
    """Start the SuperLink and one process per member, and wait until all are online."""
    link = Program(["federation", "serve", str(place.path)], place.server / "superlink.log")
    programs.append(link)
    link.wait_for("ready at", 120)
    joined = {name: join(place, name, programs) for name in members or place.members()}
    for program in joined.values():
        program.wait_for("is online", 120 + 15 * len(joined))
    return {"": link, **joined}


def join(place: FederationFolder, name: str, programs: list[Program]) -> Program:
    """Start one member."""
    kit = place.path / "kits" / name
    (rows,) = kit.glob("data.*")
    arguments = ["federation", "join", str(kit), "--data", str(rows)]
    programs.append(Program(arguments, kit / "join.log"))
    return programs[-1]


def coordinator(place: FederationFolder, classes: int, hub: Transport | None = None) -> Coordinator:
    """Return the coordinator of such a federation, with its public test set."""
    from hush.deploy.transport import flower

    hub = hub or flower.CoordinatorClient(place.settings.address, place.ca(), place.secret(), turn=place.turn)
    with np.load(place.path / "test.npz", allow_pickle=False) as archive:
        test = from_arrays(archive["x"], archive["y"], "public test set", classes)
    return Coordinator(place, hub, test)


def run(
    path: Path, config: Config, *, resume: bool = False, command: str = "", progress: Progress | None = None,
    times: dict[str, float] | None = None, data: str | None = None, say: Callable[[str], None] = lambda words: None,
) -> RunResult:  # fmt: skip
    """Run all of it: certificates, keys, policies, SuperLink, members, and one training run."""
    place = FederationFolder(path) if resume and path.exists() else make(path, config, times=times, data=data)
    classes = prepare(config, root=data).data.dataset.classes
    with stopping([]) as programs:
        say("starting the SuperLink and the members")
        start(place, programs)
        return coordinator(place, classes).run(
            config, place.runs / RUN, resume=resume, command=command, progress=progress, say=say
        )


def try_files(
    path: Path, config: Config, files: Mapping[str, Path], *, schema: Path | None = None, test: Path | None = None,
    label: str = "label", epsilon: float = 1.0, command: str = "", progress: Progress | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> RunResult:  # fmt: skip
    """Run a whole federation with synthetic rows in place of those in the members' files; nothing is charged for them.

    Args:
        path: The federation directory to create.
        config: The config of the run.
        files: The file of each member, by its name. It is read as a member would read it, so that a value that the
            schema does not allow is found; then only its schema and its number of rows are used.
        schema: The `schema.toml` of all files and of the run; without it, their headers.
        test: The public test set; by default synthetic rows.
        label: The label column, without a schema.
        epsilon: The budget that every member's policy allows here.
        command: What started the run, for its manifest.
        progress: Called after each round.
        say: Called with what happens before the first round.
    """
    declared = None if schema is None else read_schema(schema)
    loaded = {name: datasets.load(file, label=label, declared=declared) for name, file in files.items()}
    classes = max(rows.classes for rows in loaded.values())
    place = places.create(path, list(files), f"127.0.0.1:{free_port()}")
    evaluates = 0.1 if config.evaluation.share else 0.0
    words = template(
        epsilon, 1e-5, config.privacy.relation, [recipes.parse(config.recipe, config.mode)[0]], auto_approve=True,
        uncovered=True, seeded=config.privacy.noise == "seeded", max_cpu=1.0, label=label, held_out=evaluates,
    )  # fmt: skip
    for number, (name, rows) in enumerate(loaded.items()):
        kit = path / "kits" / name
        (kit / "policy.toml").write_text(words)
        made = synthetic_rows(rows.schema or Schema(shape=rows.x.shape[1:]), len(rows.y), classes, number)
        write_rows(kit / "data", made)
    first = next(iter(loaded.values()))
    shared = first.schema or Schema(shape=first.x.shape[1:])
    if schema is not None:
        for folder in (path, *(path / "kits" / name for name in files)):
            shutil.copy(schema, folder / datasets.SCHEMA)
    if test is None:
        write_rows(path / "test", synthetic_rows(shared, _TEST_ROWS, classes, len(files)))
    rows = datasets.public_test(test, path, config, label=label, classes=None if declared else classes)
    from hush.deploy.transport import flower

    hub = flower.CoordinatorClient(place.settings.address, place.ca(), place.secret(), turn=place.turn)
    with stopping([]) as programs:
        say(f"starting the SuperLink and {', '.join(files)}, with synthetic rows")
        start(place, programs)
        return Coordinator(place, hub, rows).run(config, place.runs / RUN, command=command, progress=progress, say=say)
