"""The gate before a SuperLink: paths, secret, sizes, and which messages and answers pass it."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from hush.deploy.transport.gateway import (
    COPIED_HEADER,
    INSTANCE_HEADER,
    LIMIT_HEADER,
    LIMIT_PATH,
    REQUEST_CAP,
    RUN_HEADER,
    SECONDS_HEADER,
    SECRET_HEADER,
    SILENCE,
    Gateway,
    Instances,
    Listed,
)
from hush.deploy.transport.mailbox import (
    ANSWER_PATH,
    COLLECT_PATH,
    DONE_HEADER,
    MESSAGE_HEADER,
    NEXT_PATH,
    SEND_PATH,
    Mailbox,
    packed,
    unpacked,
)

JOIN, BEAT, NEXT, ANSWER = "/v1/fleet/activate-node", "/v1/fleet/send-node-heartbeat", NEXT_PATH, ANSWER_PATH


class Behind:
    """What stands behind the gate, and answers with the status that it is told to."""

    def __init__(self) -> None:
        self.status, self.seen, self.read = 200, 0, 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.gate = Gateway(self, "secret")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen += 1
        await send({"type": "http.response.start", "status": self.status, "headers": []})

    def post(
        self, path: str, size: int | None = 0, before: tuple[tuple[bytes, bytes], ...] = (), body: bytes | None = None,
        **headers: Any,
    ) -> int:  # fmt: skip
        """The status that a request of this size gets; the headers `before` come first."""
        given = list(before) + [(key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()]
        size = len(body) if body is not None else size
        given += [] if size is None else [(b"content-length", str(size).encode())]
        statuses: list[int] = []
        self.body = b""

        async def receive() -> Any:
            self.read += 1
            return {"type": "http.request", "body": body or bytes(size or 0), "more_body": False}

        async def send(event: Any) -> None:
            if event["type"] == "http.response.start":
                statuses.append(event["status"])
                self.headers = dict(event["headers"])
            self.body += event.get("body", b"")

        asyncio.run(self.gate({"type": "http", "method": "POST", "path": path, "headers": given}, receive, send))
        return statuses[0]

    def limit(self, size: object, secret: str = "secret", run: str = "1", seconds: str = "60") -> int:
        named: dict[str, Any] = {LIMIT_HEADER: str(size), RUN_HEADER: run, SECONDS_HEADER: seconds}
        return self.post(LIMIT_PATH, **{SECRET_HEADER: secret, **named})

    def message(self, name: str, key: str = "one", run: str = "1", text: bytes = b"message") -> int:
        """The coordinator of a run sends a message."""
        words = {"messages": [{"name": name, "to": key, "parts": ["text"]}], "ttl": 60.0}
        named: dict[str, Any] = {RUN_HEADER: run, SECRET_HEADER: "secret"}
        return self.post(SEND_PATH, body=b"".join(packed(words, {"text": [text]})), **named)

    def collected(self, *names: str, run: str = "1") -> dict[str, bytes]:
        named: dict[str, Any] = {RUN_HEADER: run, SECRET_HEADER: "secret"}
        assert self.post(COLLECT_PATH, body=json.dumps({"names": names, "wait": 0}).encode(), **named) == 200
        return {name: bytes(part) for name, part in unpacked(self.body)[1].items()}

    def member(self, path: str, key: str = "one", size: int = 0, **headers: Any) -> int:
        return self.post(path, size, flwr_public_key=key, **headers)

    def answer(self, name: str, size: int, key: str = "one") -> int:
        return self.post(ANSWER, size, ((MESSAGE_HEADER.encode(), name.encode()),), flwr_public_key=key)


def joined(*keys: str) -> Behind:
    """A gate behind which these members are registered, and a run with a limit of 1,000 bytes and the frame."""
    behind = Behind()
    for key in keys:
        assert behind.member(JOIN, key) == 200
    behind.limit(1000)
    return behind


def test_only_nodes_paths_are_open_without_the_secret() -> None:
    behind = Behind()
    assert behind.post(BEAT) == 200
    for path in ("/v1/control/start-run", "/v1/fleet/push-object", "/v1/fleet/pull-messages", SEND_PATH, COLLECT_PATH):
        assert behind.post(path) == 403
        assert behind.post(path, hush_coordinator="guess") == 403
    assert behind.post("/v1/control/start-run", hush_coordinator="secret") == 200
    assert behind.post(BEAT, None) == 411
    assert behind.seen == 2


def test_a_message_reaches_its_member_and_the_answer_its_coordinator() -> None:
    behind = joined("one", "two")
    assert behind.member(NEXT) == 204
    assert behind.message("a", text=b"to one") == 200
    assert behind.member(NEXT, "two") == 204
    assert behind.member(NEXT) == 200
    assert (behind.body, behind.headers[MESSAGE_HEADER.encode()]) == (b"to one", b"a")
    assert behind.member(NEXT) == 200, "a response may be lost: it is delivered until the member has dealt with it"
    assert behind.collected("a") == {}
    assert behind.answer("a", 7) == 200
    assert behind.collected("a") == {"a": bytes(7)}
    assert behind.collected("a") == {"a": bytes(7)}, "this response may be lost as well"
    assert behind.collected() == {}
    assert behind.answer("a", 7) == 410
    assert behind.message("b") == 200
    assert behind.message("c") == 200
    done: dict[str, Any] = {DONE_HEADER: "b"}
    assert behind.member(NEXT, **done) == 200
    assert behind.headers[MESSAGE_HEADER.encode()] == b"c"


def test_no_answer_is_longer_than_its_run_allows() -> None:
    behind = joined("one")
    assert behind.limit(1000, "guess") == 403
    assert behind.limit("much") == 400
    behind.message("a")
    read = behind.read
    assert behind.answer("a", 1 << 20) == 413
    assert behind.read == read, "it was not read"
    assert behind.member(BEAT, size=1 << 20) == 413
    assert behind.member(NEXT, size=1 << 20) == 413
    assert behind.answer("a", 2000) == 200
    assert behind.post("/v1/control/start-run", 1 << 30, hush_coordinator="secret") == 200


def test_a_message_is_answered_once_and_by_its_member_alone() -> None:
    behind = joined("one", "two")
    behind.message("a")
    assert [behind.answer(name, 10, key) for name, key in (("a", "two"), ("", "one"), ("b", "one"))] == [410] * 3
    assert behind.answer("a", 10) == 200
    assert behind.answer("a", 20) == 200, "sent again because the response was lost"
    assert behind.collected("a") == {"a": bytes(10)}, "the first one counts"


def test_who_is_not_genuine_gets_and_sends_nothing() -> None:
    behind = joined("one")
    behind.gate = Gateway(behind, "secret", genuine=lambda headers: headers[b"flwr-public-key"] != b"one")
    behind.limit(1000)
    behind.message("a")
    assert [behind.member(NEXT), behind.answer("a", 10)] == [401, 401]
    assert behind.collected("a") == {}


def test_a_member_registers_again_after_a_restart() -> None:
    behind = joined("one")
    behind.gate = Gateway(behind, "secret")
    assert behind.message("a") == 410
    assert (behind.member(NEXT), behind.body) == (410, b"this node is not active")
    assert behind.member(JOIN) == 200
    assert behind.member(NEXT) == 204


def test_nobody_speaks_for_another_key_by_sending_two() -> None:
    """Flower reads the first of two headers: a member could take the place of another."""
    behind = Behind()
    behind.gate = Gateway(behind, "secret", cap=1000, genuine=lambda headers: headers[b"flwr-public-key"] != b"theirs")
    mine = ((b"flwr-public-key", b"mine"),)
    for _ in range(9):
        assert behind.post(BEAT, 1000, mine, flwr_public_key="theirs", hush_instance="1") == 400
    assert behind.seen == 0
    assert behind.post(BEAT, 1000, flwr_public_key="theirs", hush_instance="2") == 200
    for name in (b"content-length", SECRET_HEADER.encode(), INSTANCE_HEADER.encode()):
        twice: dict[str, Any] = {name.decode().replace("-", "_"): "2"} if name != b"content-length" else {}
        assert behind.post(BEAT, 2, ((name, b"1"),), **twice) == 400


def test_no_request_announces_a_size_and_comes_in_chunks() -> None:
    behind = Behind()
    for path in (ANSWER, BEAT, "/v1/control/start-run"):
        assert behind.post(path, 10, transfer_encoding="chunked", hush_coordinator="secret") == 411
    assert behind.seen == 0


def test_only_listed_keys_pass_and_nobody_before_the_list_is_known() -> None:
    behind, listed = Behind(), Listed()
    behind.gate = Gateway(behind, "secret", REQUEST_CAP, listed)
    polls: list[dict[str, Any]] = [{"flwr_public_key": base64.b64encode(key).decode()} for key in (b"one", b"two")]
    for path, accepted in ((BEAT, 200), (NEXT, 410)):
        listed._keys = None
        assert [behind.post(path, **poll) for poll in polls] == [503, 503]
        assert behind.post("/v1/control/start-run", hush_coordinator="secret") == 200
        listed.name([b"one"])
        assert [behind.post(path, **poll) for poll in polls] == [accepted, 403]
        assert behind.post(path) == 403
        listed.name([])
        assert [behind.post(path, **poll) for poll in polls] == [403, 403]


def test_each_run_has_a_limit_of_its_own() -> None:
    """Two runs at once: the smaller one, which asks last, does not turn away what the larger one waits for."""
    behind, clock = joined("one"), Clock()
    behind.gate = Gateway(behind, "secret", post=Mailbox(clock))
    assert behind.member(JOIN) == 200
    small, large = 60_000, 300_000
    behind.limit(large, run="large")
    behind.limit(1000, run="small")
    for number in range(3):
        assert (behind.message(f"l{number}", run="large"), behind.message(f"s{number}", run="small")) == (200, 200)
    assert behind.answer("l0", large + (1 << 17)) == 413
    assert behind.answer("s0", large) == 413
    assert (behind.answer("l0", large), behind.answer("s0", small)) == (200, 200)
    behind.limit(1000, run="small")
    assert behind.collected("s0", run="small") == {"s0": bytes(small)}, "a new limit loses nothing"
    assert behind.collected("l0", run="small") == {}
    behind.limit(0, run="large")
    assert behind.answer("l1", small) == 410
    behind.limit(large, run="large")
    assert behind.collected("l0", run="large") == {}, "nothing is left of what ended"
    clock.now += 100.0
    assert behind.answer("s1", small) == 410, "a coordinator that died leaves nothing behind"
    assert behind.limit(1000, run="") == 400
    assert behind.limit(1000, seconds="") == 400


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_process_speaks_for_a_key_and_both_hear_of_a_second() -> None:
    behind, clock = Behind(), Clock()
    instances = Instances(clock)
    behind.gate = Gateway(behind, "secret", instances=instances)

    def poll(instance: str, path: str = "send-node-heartbeat") -> int:
        headers: dict[str, Any] = {"flwr_public_key": "key", INSTANCE_HEADER: instance}
        return behind.post(f"/v1/fleet/{path}", **headers)

    assert poll("first") == 200
    headers: dict[str, Any] = {"flwr_public_key": "key", INSTANCE_HEADER: "copy"}
    assert [behind.post(path, **headers) for path in (NEXT, ANSWER)] == [409, 409]
    for path in ("activate-node", "deactivate-node", "send-node-heartbeat"):
        assert poll("copy", path) == 409
        assert poll("", path) == 409
    assert behind.seen == 1
    assert poll("first") == 200
    assert behind.headers[COPIED_HEADER.encode()] == b"1"
    assert poll("first") == 200
    assert COPIED_HEADER.encode() not in behind.headers
    assert (instances.copied_keys(), instances.copied_keys()) == ([b"key"], [])
    for _ in range(10):
        clock.now += 0.9 * SILENCE
        assert (poll("first"), poll("copy")) == (200, 409)
    clock.now += 1.1 * SILENCE
    assert (poll("restarted"), poll("first")) == (200, 409)
    assert poll("restarted", "deactivate-node") == 200
    assert poll("first") == 200, "who signs off leaves its place at once"


def test_who_has_no_key_neither_holds_a_place_nor_raises_an_alarm() -> None:
    behind, instances = Behind(), Instances()
    behind.gate = Gateway(behind, "secret", instances=instances, genuine=lambda headers: False)
    behind.status = 401
    headers: dict[str, Any] = {"flwr_public_key": "key", INSTANCE_HEADER: "stranger"}
    assert behind.post("/v1/fleet/activate-node", **headers) == 401
    behind.status = 200
    assert behind.post("/v1/fleet/activate-node", **{**headers, INSTANCE_HEADER: "first"}) == 200
    behind.status = 401
    assert behind.post("/v1/fleet/activate-node", **headers) == 401
    assert instances.copied_keys() == []
