"""The commands of a federation between real machines."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hush.types import HushError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hush.types import RoundRecord

federation_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="A federation between real machines, on Flower."
)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.")]
KitFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The member's own folder (its kit).")]
File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The run's config.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a key; may be repeated.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run that is there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]
Data = Annotated[str | None, typer.Option(help="Directory with the public dataset files (or HUSH_DATA).")]


@federation_app.command()
def init(
    directory: Folder,
    members: Annotated[str, typer.Option(help="Names, between commas.")],
    address: Annotated[str, typer.Option(help="Where members reach the server, host:port.")] = "127.0.0.1:8443",
    host: Annotated[list[str] | None, typer.Option(help="A further name of the server; may be repeated.")] = None,
    days: Annotated[int, typer.Option(help="How long the server's certificate is valid.")] = 365,
    keys: Annotated[bool, typer.Option(help="Make the members' keys here; else each makes its own on joining.")] = True,
) -> None:
    """Make a new federation: CA, server certificate, a kit for each member."""
    _need_flower()
    from hush.deploy.place import create
    from hush.deploy.template import template

    names = [name.strip() for name in members.split(",") if name.strip()]
    words = template(1.0, 1e-5, "add-remove", ["robust-hdp"])
    create(directory, names, address, hosts=host or (), days=days, with_keys=keys, policy=words)
    print(f"{directory}: a federation of {len(names)} at {address}")
    print(f"Hand each member its folder in {directory / 'kits'}, over a channel you trust, then delete it here.")
    if not keys:
        print("Each member runs hush federation join once, sends you its NAME.pub, and you run hush federation admit.")


@federation_app.command()
def admit(directory: Folder, name: str, public_key: Annotated[Path, typer.Argument(metavar="NAME.pub")]) -> None:
    """Let a member in by its public key."""
    _need_flower()
    from hush.deploy.keys import read
    from hush.deploy.place import Place

    Place(directory).admit(name, read(public_key, "a public key"))
    print(f"{name} is a member")


@federation_app.command()
def revoke(directory: Folder, name: str) -> None:
    """Shut a member out; a running SuperLink does so within a second."""
    _need_flower()
    from hush.deploy.place import Place

    Place(directory).revoke(name)
    print(f"{name} is no longer a member")


@federation_app.command()
def renew(
    directory: Folder,
    host: Annotated[list[str] | None, typer.Option(help="A further name of the server; may be repeated.")] = None,
    days: Annotated[int, typer.Option(help="How long the new certificate is valid.")] = 365,
) -> None:
    """Make a new server certificate with the same CA; members notice nothing."""
    _need_flower()
    from hush.deploy.keys import make_server
    from hush.deploy.place import Place

    place = Place(directory)
    for old in ("server.key", "server.crt"):
        (place.server / old).unlink(missing_ok=True)
    hosts = [place.settings.host, *(host or ()), "localhost", "127.0.0.1"]
    make_server(place.server, list(dict.fromkeys(hosts)), days)
    print(f"{place.server / 'server.crt'}: valid for {days} days; restart hush federation serve")


@federation_app.command()
def code() -> None:
    """Print the hash of the code that is installed, for accept.code in a policy."""
    from hush.deploy.template import code_hash

    print(code_hash())


@federation_app.command()
def serve(
    directory: Folder,
    listen: Annotated[str | None, typer.Option(help="The address to listen on, such as 0.0.0.0.")] = None,
) -> None:
    """Run the SuperLink: TLS, node authentication, and a gate before it."""
    _need_flower()
    from hush.deploy.place import Place
    from hush.deploy.processes import follow_parent
    from hush.deploy.serving import serve as run_link

    follow_parent()
    run_link(Place(directory), _say, listen)


@federation_app.command()
def join(
    directory: KitFolder,
    data: Annotated[Path, typer.Option(help="The member's data: .npz, .csv, .parquet or a folder with IDX files.")],
    policy: Annotated[Path | None, typer.Option(help="By default policy.toml in the kit.")] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for a SuperLink that is away.")] = 3600.0,
) -> None:
    """Take part as a member: its policy, its ledger, its data."""
    _need_flower()
    from hush.deploy.member import join as take_part
    from hush.deploy.place import open_kit
    from hush.deploy.processes import follow_parent

    follow_parent()
    take_part(open_kit(directory), policy or directory / "policy.toml", data, _say, wait)


@federation_app.command()
def run(
    directory: Folder,
    file: File,
    test: Annotated[
        Path | None,
        typer.Option(
            help="The public test set, which also says what rows are like; by default DIR/test.* or data.name."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory; by default DIR/runs/NAME.")] = None,
    label: Annotated[str, typer.Option(help="The column with the labels, in CSV and Parquet.")] = "label",
    classes: Annotated[int | None, typer.Option(help="How many; by default the largest label plus one.")] = None,
    sets: Sets = None,
    resume: Resume = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Run a config with the members that are online."""
    _need_flower()
    from hush import report
    from hush.config import load
    from hush.deploy.coordinator import Coordinator
    from hush.deploy.place import Place
    from hush.deploy.rows import public_test
    from hush.engines.flower import Hub

    place, config = Place(directory), load(file, sets or ())
    rows = public_test(test, place.path, config, label=label, classes=classes, root=data)
    hub = Hub(place.settings.address, place.ca(), place.secret())
    path = out or place.runs / file.stem
    command = shlex.join(["hush", *sys.argv[1:]])
    progress = None if as_json else _progress
    result = Coordinator(place, hub, rows).run(config, path, resume=resume, command=command, progress=progress)
    report.write(path)
    _finish(result, path, as_json)


@federation_app.command()
def status(directory: Folder, as_json: AsJson = False) -> None:
    """Say who is a member, who is online, and how far the runs are."""
    _need_flower()
    from hush.deploy.place import Place
    from hush.deploy.standing import standing

    found = standing(Place(directory))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(f"{found['address']}: the SuperLink is {'up' if found['up'] else 'not up'}")
    for name, state in found["members"].items():
        print(f"  {name:20} {state}")
    for each in found["runs"]:
        print(f"  run {each['run']}: {each['state']}, round {each['round']} of {each['rounds']}")


@federation_app.command()
def local(
    file: File,
    members: Annotated[int, typer.Option(help="How many.")] = 3,
    directory: Annotated[Path | None, typer.Option("--dir", help="By default a new one under runs/.")] = None,
    sets: Sets = None,
    resume: Resume = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Run all of a federation on this machine, over loopback, with TLS and node authentication."""
    _need_flower()
    from hush import report
    from hush.config import load
    from hush.deploy import local as here

    config = load(file, [*(sets or ()), f"data.clients={members}"])
    path = directory or _fresh(f"federation-{file.stem}")
    if resume and directory is None:
        raise HushError("--resume: say which federation to go on with, by --dir")
    result = here.run(
        path, config, resume=resume, command=shlex.join(["hush", *sys.argv[1:]]),
        progress=None if as_json else _progress, data=data, say=(lambda words: None) if as_json else _say,
    )  # fmt: skip
    report.write(path / "runs" / here.RUN)
    _finish(result, path / "runs" / here.RUN, as_json)


def _finish(result: Any, path: Path, as_json: bool) -> None:
    from hush.server.rundir import to_json
    from hush.terminal import show_run

    if as_json:
        sys.stdout.write(to_json(result).decode())
    else:
        show_run(result, path)


def _progress(record: RoundRecord, left: Mapping[str, str]) -> None:
    names = list(left)
    out = "; ".join(f"{names[client]}: {reason}" for client, reason in record.refused.items())
    answered = ", ".join(names[client] for client in record.charged)
    budgets = ", ".join(f"{name} {value}" for name, value in left.items())
    _say(f"round {record.round}: answered {answered or 'nobody'}{f'; not: {out}' if out else ''}; left {budgets}")


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _fresh(label: str) -> Path:
    path, number = Path("runs") / label, 2
    while path.exists():
        path, number = Path("runs") / f"{label}-{number}", number + 1
    return path


def _need_flower() -> None:
    if find_spec("flwr") is None:
        raise HushError("federation: Flower is not installed; install it with: pip install 'hush[deploy]'")
