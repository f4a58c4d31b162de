"""Federation commands: run Hush across machines."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hush.text import printable
from hush.types import HushError, NothingTrainedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hush.deploy.admin.folders import FederationFolder
    from hush.deploy.admin.operation_log import Process
    from hush.deploy.coordinator.queue import RunOptions
    from hush.types import RoundRecord, RunResult

_LONGEST = 4000
federation_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Run a federation across machines (Flower transport)."
)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The federation directory.")]
KitFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The member's directory (its kit).")]
File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The config of the run.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a config key; can be repeated.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in this directory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON to standard output.")]
LogFile = Annotated[
    str | None,
    typer.Option(
        "--log-file", envvar="HUSH_LOG_FILE", show_envvar=True,
        help="Write JSON lines to this file, which is rotated; -: to standard error, in place of sentences.",
    ),
]  # fmt: skip
LogLevel = Annotated[
    str,
    typer.Option(
        "--log-level", envvar="HUSH_LOG_LEVEL", show_envvar=True,
        help="The lowest level in the log file: debug, info, warning or error.",
    ),
]  # fmt: skip
Data = Annotated[str | None, typer.Option(help="Directory with the public dataset files (or HUSH_DATA).")]


@federation_app.command()
def init(
    directory: Folder,
    members: Annotated[str, typer.Option(help="Member names, separated by commas.")],
    address: Annotated[
        str, typer.Option(help="The address at which members reach the server, host:port.")
    ] = "127.0.0.1:8443",
    host: Annotated[
        list[str] | None, typer.Option(help="An additional host name of the server; can be repeated.")
    ] = None,
    days: Annotated[int, typer.Option(help="Validity of the server certificate, in days.")] = 365,
    keys: Annotated[
        bool, typer.Option(help="Create the members' keys here; otherwise each member creates its own when it joins.")
    ] = True,
) -> None:
    """Create a new federation: CA, server certificate and one kit per member."""
    need_flower()
    from hush.deploy.admin.folders import create
    from hush.deploy.member.policy_template import template

    names = [name.strip() for name in members.split(",") if name.strip()]
    words = template(1.0, 1e-5, "add-remove", ["robust-hdp"])
    create(directory, names, address, hosts=host or (), days=days, with_keys=keys, policy=words)
    print(printable(f"{directory}: created a federation of {len(names)} members at {address}", _LONGEST))
    print(
        printable(
            f"Send each member its directory in {directory / 'kits'} over a trusted channel, then delete it here.",
            _LONGEST,
        )
    )
    if not keys:
        print("Each member runs hush federation join once and sends you its NAME.pub; then run hush federation admit.")


@federation_app.command()
def admit(directory: Folder, name: str, public_key: Annotated[Path, typer.Argument(metavar="NAME.pub")]) -> None:
    """Add a member by its public key."""
    need_flower()
    from hush.deploy.admin.folders import FederationFolder
    from hush.deploy.admin.keys import read

    FederationFolder(directory).admit(name, read(public_key, "a public key"))
    print(f"{name} is now a member")


@federation_app.command()
def revoke(directory: Folder, name: str) -> None:
    """Remove a member; a running SuperLink rejects its key within a second."""
    need_flower()
    from hush.deploy.admin.folders import FederationFolder

    FederationFolder(directory).revoke(name)
    print(f"{name} is no longer a member")


@federation_app.command()
def renew(
    directory: Folder,
    host: Annotated[
        list[str] | None, typer.Option(help="An additional host name of the server; can be repeated.")
    ] = None,
    days: Annotated[int, typer.Option(help="Validity of the new certificate, in days.")] = 365,
) -> None:
    """Create a new server certificate signed by the same CA; neither members nor a running serve need a restart."""
    need_flower()
    from hush.deploy.admin.folders import FederationFolder
    from hush.deploy.admin.keys import renew_server, validity

    place = FederationFolder(directory)
    renew_server(place.server, [place.settings.host, *(host or ()), "localhost", "127.0.0.1"], days)
    until = f"{validity(place.server / 'server.crt')[1]:%Y-%m-%d}"
    print(printable(f"{place.server / 'server.crt'}: valid until {until}; a running serve uses it at once", _LONGEST))


@federation_app.command()
def code() -> None:
    """Print the hash of the installed code, for accept.code in a policy that lists each accepted version."""
    from hush.deploy.shared.protocol import code_hash

    print(code_hash())


@federation_app.command()
def fingerprint(public_keys: Annotated[list[Path], typer.Argument(metavar="NAME.pub...")]) -> None:
    """Print fingerprints of members' keys, for secure_aggregation.peers in a policy."""
    from hush.deploy.admin import keys

    for path in public_keys:
        found = keys.fingerprint(keys.load_public(keys.read(path, "a public key"), path))
        print(printable(f'{path.stem} = "{found}"', _LONGEST))


@federation_app.command()
def serve(
    directory: Folder,
    listen: Annotated[str | None, typer.Option(help="The address to listen on, such as 0.0.0.0.")] = None,
    log_file: LogFile = None,
    log_level: LogLevel = "info",
) -> None:
    """Run the SuperLink with TLS and node authentication, behind the gateway."""
    need_flower()
    start_log("serve", log_file, log_level)
    from hush.deploy.admin.folders import FederationFolder
    from hush.deploy.admin.processes import follow_parent
    from hush.deploy.transport.server import serve as run_link

    follow_parent()
    run_link(FederationFolder(directory), _say, listen)


@federation_app.command()
def join(
    directory: KitFolder,
    data: Annotated[Path, typer.Option(help="The member's data: .npz, .csv, .parquet or a directory of IDX files.")],
    policy: Annotated[Path | None, typer.Option(help="Policy file; default: policy.toml in the kit.")] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for an unreachable SuperLink.")] = 3600.0,
    log_file: LogFile = None,
    log_level: LogLevel = "info",
) -> None:
    """Take part in a federation as a member."""
    need_flower()
    start_log("join", log_file, log_level)
    from hush.deploy.admin.folders import open_kit
    from hush.deploy.admin.processes import follow_parent
    from hush.deploy.member.service import join as take_part

    follow_parent()
    take_part(open_kit(directory), policy or directory / "policy.toml", data, _say, wait)


@federation_app.command()
def check(
    directory: KitFolder,
    file: File,
    data: Annotated[Path, typer.Option(help="The member's data, as for join.")],
    policy: Annotated[Path | None, typer.Option(help="Policy file; default: policy.toml in the kit.")] = None,
    members: Annotated[int | None, typer.Option(help="Number of members; default: data.clients.")] = None,
    schema: Annotated[Path | None, typer.Option(help="The schema.toml of the run; default: the member's own.")] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Dry-run a config as a member on synthetic rows: report its cost and the remaining budget. Charges nothing."""
    need_flower()
    from dataclasses import asdict

    from hush.config import load
    from hush.data.schema import read
    from hush.deploy.admin.folders import open_kit
    from hush.deploy.dry_run import dry_run

    more = [] if members is None else [f"data.clients={members}"]
    config = load(file, [*(sets or ()), *more])
    declared = None if schema is None else read(schema)
    found = dry_run(open_kit(directory), policy or directory / "policy.toml", data, config, declared)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
    else:
        for warning in found.warnings:
            _say(warning)
        print(f"epsilon spent so far {found.spent:.4g}, remaining {found.left:.4g}")
        if found.refused:
            print(f"this member would refuse the run: {printable(found.refused)}")
        else:
            print(f"{found.rounds} rounds of {found.steps} steps with noise multiplier {found.noise:.4g}")
            print(f"the run would cost epsilon {found.epsilon:.4g}; remaining afterwards: {found.left_after:.4g}")
            print(
                f"a round took {found.seconds:.2f} s on this machine with synthetic rows; nothing was charged or sent"
            )
    if found.refused:
        raise typer.Exit(1)


@federation_app.command()
def run(
    directory: Folder,
    file: File,
    test: Annotated[
        Path | None,
        typer.Option(help="The public test set, which also defines the schema; default: DIR/test.* or data.name."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory; default: DIR/runs/NAME.")] = None,
    purpose: Annotated[
        str, typer.Option(help="What the run is for, as the members' operators see it before they approve it.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Members take part with synthetic rows and charge nothing.")
    ] = False,
    queued: Annotated[
        bool, typer.Option("--queue", help="Add it to the queue, which hush federation work runs one after the other.")
    ] = False,
    label: Annotated[str, typer.Option(help="The label column of CSV and Parquet files.")] = "label",
    classes: Annotated[int | None, typer.Option(help="Number of classes; default: the largest label plus one.")] = None,
    sets: Sets = None,
    resume: Resume = False,
    data: Data = None,
    log_file: LogFile = None,
    log_level: LogLevel = "info",
    as_json: AsJson = False,
) -> None:
    """Run a config with the online members."""
    need_flower()
    start_log("run", log_file, log_level)
    from hush.deploy.admin.folders import FederationFolder
    from hush.deploy.coordinator.queue import RunOptions

    place = FederationFolder(directory)
    path = out or (_fresh(file.stem, place.path / "dry-runs") if dry_run else place.runs / file.stem)
    options = RunOptions(
        purpose=purpose, test=None if test is None else str(test.absolute()), label=label, classes=classes,
        sets=tuple(sets or ()), data=data,
    )  # fmt: skip
    if queued:
        _add_to_queue(place, file, options, refused=dry_run or resume or out is not None)
        return
    result = train(
        place, file, path, options, resume=resume, dry_run=dry_run, quiet=as_json,
        command=shlex.join(["hush", *sys.argv[1:]]),
    )  # fmt: skip
    _finish(result, path, as_json)
    if dry_run:
        _say(
            f"dry run on synthetic rows: nothing was charged at any member, and the model means nothing; "
            f"{result.seconds / max(1, result.rounds):.2f} s a round"
        )


def _add_to_queue(place: FederationFolder, file: Path, options: RunOptions, *, refused: bool) -> None:
    from hush.config import load
    from hush.deploy.coordinator import queue

    if refused:
        raise HushError("--queue: accepted without --out, --dry-run and --resume: a queued run is resumed by itself")
    load(file, options.sets)
    entry = queue.add(place, file.read_bytes(), file.stem, options)
    before = sum(each.state in ("waiting", "running") for each in queue.listed(place)) - 1
    print(
        printable(
            f"run {entry.name} has number {entry.number} in the queue, {before} before it; "
            f"hush federation work {place.path} runs them",
            _LONGEST,
        )
    )


def train(
    place: FederationFolder, file: Path, path: Path, options: RunOptions, *, resume: bool, dry_run: bool = False,
    quiet: bool = False, command: str = "",
) -> RunResult:  # fmt: skip
    """Run a config file with the online members in a run directory, and write its report."""
    from hush import report
    from hush.config import load
    from hush.deploy.coordinator.run import Coordinator
    from hush.deploy.member.datasets import public_test
    from hush.deploy.transport.flower import CoordinatorClient

    config = load(file, options.sets)
    test = None if options.test is None else Path(options.test)
    rows = public_test(test, place.path, config, label=options.label, classes=options.classes, root=options.data)
    hub = CoordinatorClient(place.settings.address, place.ca(), place.secret(), turn=place.turn)
    result = Coordinator(place, hub, rows).run(
        config, path, resume=resume, command=command, progress=None if quiet else round_lines(config.rounds),
        purpose=options.purpose, say=_say, dry_run=dry_run,
    )  # fmt: skip
    report.write(path)
    return result


@federation_app.command()
def dashboard(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The federation directory, or a member's directory (its kit).")
    ],
    listen: Annotated[
        str, typer.Option(help="The address to listen on; other addresses than those of this machine need TLS.")
    ] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="The port; default: 8322, or a free one.")] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE.crt", help="A TLS certificate; a coordinator elsewhere: its server's by default."),
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE.key", help="The key of the certificate.")] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve a live, read-only page of a federation or of a member, with metrics and a health endpoint."""
    from hush.deploy.admin.processes import follow_parent
    from hush.deploy.dashboard.service import serve_dashboard, token_file

    def opened(address: str) -> None:
        page, _, token = address.partition("?token=")
        # Whoever reads the journal of a service need not be able to read the page.
        private = sys.stderr.isatty()
        _say(f"Dashboard: {page}?token={token if private else f'TOKEN, with the token in {token_file(directory)}'}")
        if browser:
            import webbrowser

            webbrowser.open(address)

    follow_parent()
    serve_dashboard(directory, listen=listen, port=port, certificate=certificate, key=key, opened=opened)


@federation_app.command()
def status(directory: Folder, as_json: AsJson = False) -> None:
    """Show members, which of them are online, and the progress of runs."""
    need_flower()
    from hush.deploy.admin.folders import FederationFolder
    from hush.deploy.coordinator.queue import text
    from hush.deploy.coordinator.status import federation_status

    found = federation_status(FederationFolder(directory))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(printable(f"{found['address']}: the SuperLink is {'up' if found['up'] else 'down'}", _LONGEST))
    for name, state in found["members"].items():
        print(printable(f"  {name:20} {state}", _LONGEST))
    for each in found["runs"]:
        print(printable(f"  run {each['run']}: {each['state']}, round {each['round']} of {each['rounds']}", _LONGEST))
    for each in found["queue"]:
        print(printable(f"  queue {text(each)}", _LONGEST))


@federation_app.command()
def local(
    file: File,
    members: Annotated[int, typer.Option(help="Number of members.")] = 3,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="The federation directory; default: a new one under runs/.")
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="A member's own file: tried with synthetic rows of its schema."),
    ] = None,
    schema: Annotated[Path | None, typer.Option(help="The schema.toml of these files.")] = None,
    test: Annotated[Path | None, typer.Option(help="With --rows: the public test set; default: synthetic.")] = None,
    label: Annotated[str, typer.Option(help="With --rows: the label column, without a schema.")] = "label",
    epsilon: Annotated[float, typer.Option(help="With --rows: the budget of each member.")] = 1.0,
    sets: Sets = None,
    resume: Resume = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Run a complete federation on this machine over loopback, with TLS and node authentication.

    With --rows for each member, its file is checked, and the federation runs with synthetic rows of the same schema and
    number: a dry run, which costs nothing.
    """
    need_flower()
    from hush import report
    from hush.config import load
    from hush.deploy.admin import localhost as here

    files = _files(rows or ())
    config = load(file, [*(sets or ()), f"data.clients={len(files) or members}"])
    path = directory or _fresh(f"federation-{file.stem}")
    if files:
        result = here.try_files(
            path, config, files, schema=schema, test=test, label=label, epsilon=epsilon,
            command=shlex.join(["hush", *sys.argv[1:]]),
            progress=None if as_json else round_lines(config.rounds), say=_say,
        )  # fmt: skip
        _finish(result, path / "runs" / here.RUN, as_json)
        _say("dry run on synthetic rows: the model means nothing, and nothing was charged for the rows in the files")
        return
    if resume and directory is None:
        raise HushError("--resume: requires --dir, the federation directory to resume")
    progress = None if as_json else round_lines(config.rounds)
    result = here.run(
        path, config, resume=resume, command=shlex.join(["hush", *sys.argv[1:]]), progress=progress, data=data,
        say=(lambda words: None) if as_json else _say,
    )  # fmt: skip
    report.write(path / "runs" / here.RUN)
    _finish(result, path / "runs" / here.RUN, as_json)


def _files(given: Sequence[str]) -> dict[str, Path]:
    """The files of members by name, from NAME=FILE."""
    found = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals or not name or not path or name in found:
            raise HushError(f"--rows: found {each!r:.80}; accepted: NAME=FILE, each name once")
        found[name] = Path(path)
    return found


def _finish(result: Any, path: Path, as_json: bool) -> None:
    from hush.server.run_directory import to_json
    from hush.terminal import show_run

    if as_json:
        sys.stdout.write(to_json(result).decode())
    else:
        show_run(result, path)
    if result.stopped:
        _say(f"{result.ended}, as a stop was requested")
        raise typer.Exit(130)
    if not result.trained:
        raise NothingTrainedError(result.ended, result)


def round_lines(rounds: int) -> Callable[[RoundRecord, Mapping[str, str]], None]:
    """Return what prints a line after each round: who answered, what budgets are left, and about how long it takes."""
    begun: list[tuple[int, float]] = []

    def report_round(record: RoundRecord, left: Mapping[str, str]) -> None:
        from hush.live.words import duration

        names = list(left)
        out = "; ".join(f"{names[client]}: {reason}" for client, reason in record.refused.items())
        answered = ", ".join(names[client] for client in record.charged)
        budgets = ", ".join(f"{name} {value}" for name, value in left.items())
        for client, words in record.warnings.items():
            _say(f"round {record.round}: warning: {names[client]}: {words}")
        if record.evaluation:
            _say(f"round {record.round}: {_evaluated(record.evaluation)}")
        begun.append((record.round, record.seconds))
        (first, since), more = begun[0], rounds - record.round
        time_left = ""
        if more and record.round > first:
            time_left = f"; {duration(more * (record.seconds - since) / (record.round - first))} left for {more} rounds"
        _say(
            f"round {record.round}: updates from {answered or 'nobody'}{f'; refused: {out}' if out else ''}; remaining "
            f"budget {budgets}{time_left}"
        )

    return report_round


def _evaluated(found: Mapping[str, Any]) -> str:
    """The figures of an evaluation with their standard errors, in words."""
    named = [each for each in ("accuracy", "auc", "loss", "overconfidence") if each in found]
    figures = ", ".join(f"{each} {found[each]:.3g} (noise {found[f'{each}_error']:.2g})" for each in named)
    rows = f"{found['rows']:.0f} (noise {found['rows_error']:.2g}) held-out rows of {found['clients']} members"
    return f"the model after round {found['model_of_round']} on {rows}: {figures or 'hidden by the noise'}"


def start_log(process: Process, target: str | None, level: str) -> None:
    """Begin the operation log of a command, if one is asked for."""
    from hush.deploy.admin.operation_log import check_level, start

    check_level(level)
    if target is not None:
        start(target, level, process)


def _say(words: str) -> None:
    from hush.deploy.admin.operation_log import log_message

    if not log_message(printable(words, _LONGEST)):
        print(printable(words, _LONGEST), file=sys.stderr, flush=True)


def _fresh(label: str, folder: Path = Path("runs")) -> Path:
    path, number = folder / label, 2
    while path.exists():
        path, number = folder / f"{label}-{number}", number + 1
    return path


def need_flower() -> None:
    """Raise a `HushError` that says what to install, unless Flower is."""
    if find_spec("flwr") is None:
        raise HushError("federation: Flower is not installed; install it with: pip install 'hush[deploy]'")
