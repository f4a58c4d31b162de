"""The member's commands of a federation: see what a run asks, approve or decline it, and write the policy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hush.cli.federation import KitFolder, federation_app, need_flower
from hush.text import printable
from hush.types import HushError

if TYPE_CHECKING:
    from hush.deploy.member.consent import Proposal

_LONGEST = 4000
member_app = federation_app  # with the commands below
Policy = Annotated[Path | None, typer.Option(help="Policy file; default: policy.toml in the kit.")]
Which = Annotated[
    str | None, typer.Argument(metavar="[PROPOSAL]", help="The first digits of a proposal; default: the only one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON to standard output.")]


@federation_app.command()
def preview(directory: KitFolder, proposal: Which = None, policy: Policy = None, as_json: AsJson = False) -> None:
    """Show what a proposed run asks of this member, in plain language. Nothing is charged or sent."""
    need_flower()
    import json
    from dataclasses import asdict

    from hush.deploy.admin.folders import open_kit
    from hush.deploy.member.consent import Consents

    kit = open_kit(directory)
    known = Consents(kit.path)
    if proposal is None:
        wanted = [each for each in known.listed() if each.decision == "pending"] or known.listed()[-1:]
    else:
        wanted = [known.named(proposal)]
    if as_json:
        print(
            json.dumps(
                [{"proposal": each.name, "decision": each.decision, **asdict(each.preview)} for each in wanted],
                indent=2,
            )
        )
        return
    if not wanted:
        print("no run was proposed yet; a coordinator proposes a run when it starts it")
    for each in wanted:
        _show(each, kit, policy or directory / "policy.toml")


def _show(proposal: Proposal, kit: Any, policy_path: Path) -> None:
    from hush.deploy.member import policy as law
    from hush.deploy.member.preview import sentences
    from hush.privacy.ledger import totals
    from hush.privacy.ledger.ledger import inspect

    policy = law.load(policy_path)
    charged = inspect(kit.ledger)[1].totals if kit.ledger.exists() else {}
    spent = totals.epsilon(charged, policy.for_life, policy.budget.accountant)
    arrived = time.strftime("%Y-%m-%d %H:%M", time.localtime(proposal.arrived))
    print(f"proposal {proposal.name} ({proposal.decision}), arrived {arrived}")
    for line in sentences(proposal.preview, spent, policy.for_life.epsilon):
        print(printable(f"  {line}", _LONGEST))
    if proposal.decision == "pending":
        print(printable(f"hush federation approve {kit.path} {proposal.name}    or: decline", _LONGEST))


@federation_app.command()
def approve(directory: KitFolder, proposal: Which = None) -> None:
    """Approve a proposed run: exactly what its preview shows, once."""
    _decide(directory, proposal, "approved")


@federation_app.command()
def decline(directory: KitFolder, proposal: Which = None) -> None:
    """Decline a proposed run, or leave it from its next round on. The coordinator learns that, and no reason."""
    _decide(directory, proposal, "declined")


def _decide(directory: Path, name: str | None, decision: Literal["approved", "declined"]) -> None:
    need_flower()
    from hush.deploy.admin.audit_log import AuditLog
    from hush.deploy.admin.folders import open_kit
    from hush.deploy.member.consent import Consents

    kit = open_kit(directory)
    known = Consents(kit.path)
    proposal = known.named(name, "pending")
    known.decide(proposal, decision)
    AuditLog(kit.path / "audit.jsonl").note(decision, proposal=proposal.preview.digest)
    print(f"proposal {proposal.name} is {decision}")


@federation_app.command()
def fetch(
    directory: KitFolder,
    run: Annotated[str | None, typer.Option(help="The run; default: the newest that was delivered.")] = None,
    out: Annotated[Path | None, typer.Option(help="The directory to write; default: models/RUN in the kit.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="The architecture, where it is not a built-in one.")
    ] = None,
    verify: Annotated[
        Path | None, typer.Option(help="Verify a model that was fetched before, and fetch nothing.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the deliveries, and fetch nothing.")] = False,
) -> None:
    """Fetch the trained model of a finished run, verify the coordinator's signature, and store it for hush predict."""
    need_flower()
    from hush.deploy.admin.folders import open_kit
    from hush.deploy.member import fetch as fetching
    from hush.deploy.member import policy as law

    kit = open_kit(directory)
    if listed:
        for each in fetching.available(kit):
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each["time"]))
            print(printable(f"{each['run']}  {when}  {each['size'] / 2**20:.1f} MiB", _LONGEST))
        return
    if verify is not None:
        path, certificate = verify, fetching.verify(kit, verify)
    else:
        most = law.load(directory / "policy.toml").message_cap
        path, certificate = fetching.fetch(kit, run, out, most, model)
    for line in fetching.words(certificate, path):
        print(printable(line, _LONGEST))


@federation_app.command()
def policy(
    directory: KitFolder,
    wizard: Annotated[bool, typer.Option("--wizard", help="Ask for each value and write policy.toml.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Check the policy and explain it in sentences.")] = False,
    file: Annotated[Path | None, typer.Option("--policy", help="Policy file; default: policy.toml in the kit.")] = None,
) -> None:
    """Explain a member's policy in sentences, or write one by answering questions."""
    from hush.deploy.member import policy as law
    from hush.deploy.member.policy_words import explained

    path = file or directory / "policy.toml"
    if wizard:
        _write(path, _prompted_policy())
    elif not check:
        raise HushError("policy: accepted: --check, which explains the policy, or --wizard, which writes it")
    for line in explained(law.load(path)):
        print(printable(line, _LONGEST))
    print(printable(f"{path}: valid", _LONGEST))


def _write(path: Path, text: str) -> None:
    from hush.server.run_directory import write_atomically

    if path.exists():
        before = path.with_name(f"{path.name}.before")
        write_atomically(before, path.read_bytes())
        print(printable(f"the policy so far is in {before}", _LONGEST))
    write_atomically(path, text.encode())


def _prompted_policy() -> str:
    """Ask for the values that a policy depends on most, and return the policy."""
    from hush.deploy.member.policy_template import template

    def number(question: str, usual: float, low: float, high: float) -> float:
        while True:
            found = typer.prompt(question, default=usual, type=float)
            if low < found <= high:
                return float(found)
            print(f"accepted: above {low:g} and at most {high:g}")

    def texts(question: str, usual: str) -> list[str]:
        return [each.strip() for each in typer.prompt(question, default=usual).split(",") if each.strip()]

    rows = int(number("How many rows does this member have, about?", 10_000, 0, 1e12))
    epsilon = number("Epsilon of one run (0.1 protects strongly, 5 weakly)", 1.0, 0, 1e6)
    lifetime = number("Epsilon of all runs together on these rows", 3 * epsilon, 0.999999 * epsilon, 1e9)
    label = typer.prompt("Label column", default="label")
    columns = texts("Columns that runs may use, separated by commas (empty: all)", "")
    recipes = texts("Accepted algorithms, separated by commas (any: all)", "robust-hdp")
    auto = typer.confirm("May runs within this policy start without a person approving them?", default=False)
    noised = typer.confirm(
        "Is the number of rows confidential (it is then noised, and consumes budget)?", default=False
    )
    held_out = number("Fraction of the rows for evaluation, never trained on (0 to 0.5)", 0.1, -1e-9, 0.5)
    cpu = number("Share of this machine's cores that a run may use", 0.5, 0, 1)
    memory = int(number("Memory that a run may use, in MiB", 4096, 64, 1e9))
    runs = int(number("Runs that may begin within 24 hours", 10, 0, 1e6))
    hours = typer.prompt(
        "Local hours in which runs may use this machine, such as 18:00-06:00 (empty: always)", default=""
    )
    # A delta of 1 / rows would permit publishing one row; a tenth of it is usual.
    delta = float(f"{min(1e-5, 0.1 / rows):.1g}")
    return template(
        epsilon, delta, "add-remove", recipes, samples="noised" if noised else "public", auto_approve=auto,
        max_cpu=cpu, held_out=held_out, runs_per_day=runs, lifetime=lifetime, label=label, columns=columns, hours=hours,
        max_memory=memory,
    )  # fmt: skip
