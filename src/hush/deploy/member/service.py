"""A member's service: it opens the ledger and the data, connects, and answers messages until it is stopped."""

from __future__ import annotations

import contextlib
import fcntl
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hush.deploy.admin.folders import Kit
from hush.deploy.member import datasets, expiry, held_out
from hush.deploy.member import policy as law
from hush.deploy.member.cpu_share import CpuShare
from hush.deploy.member.process import Node
from hush.deploy.shared.presence import presence_file
from hush.privacy.ledger import Ledger
from hush.privacy.ledger.binding import bind
from hush.privacy.ledger.fingerprints import Rows
from hush.privacy.weak_guarantees import warnings_of
from hush.types import HushError

_COPIED = "another process tried to use this key and was refused; was the kit copied?"


@dataclass
class State:
    """What a member's process is doing: when it last reached the SuperLink, and since when it answers a message."""

    contact: float = 0.0
    busy_since: float = 0.0


def prepare(kit: Kit, policy_path: Path, data: Path) -> Node:
    """Return a message handler with its policy, data and ledger; configuration errors are raised before it connects."""
    policy = law.load(policy_path)
    dataset = datasets.load(
        data, label=policy.data.label, loader=policy.data.loader, declared=datasets.declared(kit.path),
        columns=policy.data.columns, person=policy.data.person,
    )  # fmt: skip
    key = kit.key()
    terms, existed = policy.for_life, kit.ledger.exists()
    if existed:
        ledger = Ledger.open(kit.ledger, terms, policy.budget.accountant)
        if ledger.terms.client != kit.member:
            raise HushError(f"{kit.ledger}: belongs to {ledger.terms.client}; this member is {kit.member}")
    else:
        ledger = Ledger.create(kit.ledger, kit.member, terms, policy.budget.accountant)
    try:
        # The ledger covers all rows: those that are trained on, and those that models are evaluated on.
        bind([ledger], [Rows(dataset.x, dataset.y, dataset.person if policy.budget.unit == "person" else None)])
        rows, held_out_rows = held_out.split(kit.path, dataset, policy.data.held_out, spent=existed)
    except BaseException:
        ledger.close()
        raise
    return Node(kit.member, policy, rows, ledger, kit.path, key, held_out_rows)


def join(kit: Kit, policy_path: Path, data: Path, say: Callable[[str], None], patience: float = 3600.0) -> None:
    """Take part until the process is stopped."""
    if not (kit.path / "key.pem").exists():
        kit.key()
        say(f"created {kit.path / 'key.pem'}; send {kit.path / kit.member}.pub to the coordinator, then join again")
        return
    with kit_lock(kit):
        _take_part(kit, policy_path, data, say, patience)


@contextlib.contextmanager
def kit_lock(kit: Kit) -> Iterator[None]:
    """Lock a kit: two processes with one key would each receive half of the messages."""
    with (kit.path / "in-use").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HushError(f"{kit.path}: another process is using this kit; stop it first") from None
        yield


def _take_part(kit: Kit, policy_path: Path, data: Path, say: Callable[[str], None], patience: float) -> None:
    from hush.deploy.transport.flower import NodeClient

    node = prepare(kit, policy_path, data)
    node.say = say
    share = CpuShare(node.policy.limits.max_cpu)
    share.limit_cores()

    def copied() -> None:
        node.log.note("copied", reason=_COPIED)
        say(f"{kit.member}: {_COPIED}")

    def expires(words: str) -> None:
        node.log.note("certificate", reason=words)
        say(f"{kit.member}: {words}")

    ended = threading.Event()
    line = NodeClient(kit.address, kit.ca(), kit.key(), patience, copied)
    signal.signal(signal.SIGTERM, _stopped)
    state = State()

    def facts() -> dict[str, Any]:
        return {"address": kit.address, **asdict(state)}

    try:
        number = report(kit, line)
        expiry.watch(kit.address, kit.ca(), expires, ended)
        node.log.note("online", node=str(number))
        if warning := law.lifetime_warning(node.policy):
            say(f"{kit.member}: {warning}")
        say(f"{kit.member} is online at {kit.address}; remaining budget {node.ledger.left():.4g}")
        # Printed locally only: it may reveal the number of rows.
        one = node.policy.one_run
        for text in warnings_of(one.epsilon, one.delta, node.units, one.unit):
            say(f"Warning: {text}")
        with presence_file(kit.path, facts):
            serve(node, line, share=share, state=state)
    except KeyboardInterrupt:
        say(f"{kit.member} has disconnected")
        raise
    finally:
        ended.set()
        line.close()
        node.ledger.close()


def report(kit: Kit, line: Any) -> int:
    """Register with the SuperLink, under the node number of the last session."""
    file = kit.path / "node"
    before = file.read_text() if file.exists() else ""
    return int(line.open(int(before) if before.isdigit() else 0, lambda number: file.write_text(str(number))))


def serve(
    node: Node, line: Any, going: Callable[[], bool] = lambda: True, share: CpuShare | None = None,
    state: State | None = None,
) -> None:  # fmt: skip
    """Answer messages, one at a time, as long as `going` returns true, within a share of the machine."""
    share, state = share or CpuShare(1.0), state or State()
    while going():
        try:
            parcel = line.poll(node.policy.message_cap)
        except HushError as error:
            if type(error) is not HushError or "cannot be reached" in str(error):
                raise
            node.log.note("refused", reason=str(error))
            continue
        finally:
            state.contact = time.time()
        if parcel is None:
            continue
        state.busy_since = time.time()
        payload, receipt = node.handle(parcel.payload)
        try:
            taken = line.reply(parcel, payload)
        except HushError as error:
            # The answer stays sealed: a repeated request gets the same bytes.
            node.log.note("not sent", reason=str(error))
            node.say(f"{node.name}: an answer was not sent: {error}")
        else:
            if receipt is not None:
                # An answer that came too late may still have left this machine.
                node.ledger.sent(receipt)
                node.sent(receipt, taken, len(payload))
        share.pause()
        state.busy_since = 0.0


def _stopped(*_: object) -> None:
    raise KeyboardInterrupt
