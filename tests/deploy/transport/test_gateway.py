"""The gate before a SuperLink: paths, secret, sizes, and how much one node may send in a round."""

from __future__ import annotations

import asyncio
import base64
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

UPLOAD = "/v1/fleet/push-object"


class Behind:
    """What stands behind the gate, and answers with the status that it is told to."""

    def __init__(self) -> None:
        self.status, self.seen = 200, 0
        self.headers: dict[bytes, bytes] = {}
        self.gate = Gateway(self, "secret", cap=1000)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen += 1
        await send({"type": "http.response.start", "status": self.status, "headers": []})

    def post(
        self, path: str, size: int | None = 0, before: tuple[tuple[bytes, bytes], ...] = (), **headers: Any
    ) -> int:
        """The status that a request of this size gets; the headers `before` come first."""
        given = list(before) + [(key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()]
        given += [] if size is None else [(b"content-length", str(size).encode())]
        told: list[int] = []

        async def send(event: Any) -> None:
            if event["type"] == "http.response.start":
                told.append(event["status"])
                self.headers = dict(event["headers"])

        asyncio.run(self.gate({"type": "http", "method": "POST", "path": path, "headers": given}, None, send))
        return told[0]

    def limit(self, size: object, secret: str = "secret", run: str = "1", seconds: str = "60") -> int:
        named: dict[str, Any] = {LIMIT_HEADER: str(size), RUN_HEADER: run, SECONDS_HEADER: seconds}
        return self.post(LIMIT_PATH, **{SECRET_HEADER: secret, **named})


def test_only_nodes_paths_are_open_without_the_secret() -> None:
    behind = Behind()
    assert behind.post("/v1/fleet/pull-messages") == 200
    assert behind.post("/v1/control/start-run") == 403
    assert behind.post("/v1/control/start-run", hush_coordinator="guess") == 403
    assert behind.post("/v1/control/start-run", hush_coordinator="secret") == 200
    assert behind.post("/v1/fleet/pull-messages", None) == 411
    assert behind.seen == 2


def test_no_request_of_a_node_is_larger_than_an_answer_can_be() -> None:
    behind = Behind()
    assert behind.post(UPLOAD, 1001) == 413
    behind.gate = Gateway(behind, "secret")
    assert behind.limit(1000, "guess") == 403
    assert behind.limit("much") == 400
    assert behind.post(UPLOAD, 1 << 20) == 200
    assert behind.limit(1000) == 200
    assert behind.post(UPLOAD, 1 << 20) == 413
    assert behind.post(UPLOAD, 2000) == 200
    assert behind.post("/v1/control/start-run", 1 << 30, hush_coordinator="secret") == 200


def test_a_node_sends_a_few_answers_a_round_and_no_more() -> None:
    behind = Behind()
    behind.gate = Gateway(behind, "secret")
    behind.limit(1000)

    def sends(key: str) -> int:
        return sum(behind.post(UPLOAD, 60_000, flwr_public_key=key) == 200 for _ in range(20))

    assert sends("one") == 4
    assert sends("two") == 4
    behind.limit(1000)
    assert sends("one") == 4


def test_who_names_anothers_key_uses_up_nothing_of_it() -> None:
    behind = Behind()
    behind.gate = Gateway(behind, "secret")
    behind.limit(1000)
    behind.status = 401
    assert [behind.post(UPLOAD, 60_000, flwr_public_key="one") for _ in range(20)] == [401] * 20
    behind.status = 200
    assert behind.post(UPLOAD, 60_000, flwr_public_key="one") == 200


def test_nobody_speaks_for_another_key_by_sending_two() -> None:
    """Flower reads the first of two headers: a member could use up another's allowance, or take its place."""
    behind = Behind()
    behind.gate = Gateway(behind, "secret", cap=1000, genuine=lambda headers: headers[b"flwr-public-key"] != b"theirs")
    mine = ((b"flwr-public-key", b"mine"),)
    for _ in range(9):
        assert behind.post(UPLOAD, 1000, mine, flwr_public_key="theirs", hush_instance="1") == 400
    assert behind.seen == 0
    assert behind.post(UPLOAD, 1000, flwr_public_key="theirs", hush_instance="2") == 200
    for name in (b"content-length", SECRET_HEADER.encode(), INSTANCE_HEADER.encode()):
        twice: dict[str, Any] = {name.decode().replace("-", "_"): "2"} if name != b"content-length" else {}
        assert behind.post(UPLOAD, 2, ((name, b"1"),), **twice) == 400


def test_no_request_announces_a_size_and_comes_in_chunks() -> None:
    behind = Behind()
    for path in (UPLOAD, "/v1/control/start-run"):
        assert behind.post(path, 10, transfer_encoding="chunked", hush_coordinator="secret") == 411
    assert behind.seen == 0


def test_only_listed_keys_pass_and_nobody_before_the_list_is_known() -> None:
    behind, listed = Behind(), Listed()
    behind.gate = Gateway(behind, "secret", REQUEST_CAP, listed)
    polls: list[dict[str, Any]] = [{"flwr_public_key": base64.b64encode(key).decode()} for key in (b"one", b"two")]
    assert [behind.post("/v1/fleet/pull-messages", **poll) for poll in polls] == [503, 503]
    assert behind.post("/v1/control/start-run", hush_coordinator="secret") == 200
    listed.name([b"one"])
    assert [behind.post("/v1/fleet/pull-messages", **poll) for poll in polls] == [200, 403]
    assert behind.post("/v1/fleet/pull-messages") == 403
    listed.name([])
    assert [behind.post("/v1/fleet/pull-messages", **poll) for poll in polls] == [403, 403]


def test_each_run_has_a_limit_of_its_own() -> None:
    """Two runs at once: the smaller one, which asks last, does not turn away what the larger one waits for."""
    behind = Behind()
    behind.gate = Gateway(behind, "secret")
    small, large = 60_000, 300_000
    behind.limit(large, run="large")
    behind.limit(1000, run="small")

    def sends(size: int) -> int:
        return sum(behind.post(UPLOAD, size, flwr_public_key="one") == 200 for _ in range(20))

    assert behind.post(UPLOAD, large + (1 << 17), flwr_public_key="one") == 413
    assert sends(large) == 4
    assert sends(small) == 8, "four of the small run, and what the large run has room left for"
    behind.limit(1000, run="small")
    assert (sends(large), sends(small)) == (0, 4), "who asks anew gives room in its own run alone"
    behind.limit(0, run="large")
    assert behind.post(UPLOAD, large, flwr_public_key="two") == 413
    behind.limit(large, run="large", seconds="0")
    assert behind.post(UPLOAD, large, flwr_public_key="two") == 413, "a coordinator that died leaves no allowance"
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

    def poll(instance: str, path: str = "pull-messages") -> int:
        headers: dict[str, Any] = {"flwr_public_key": "key", INSTANCE_HEADER: instance}
        return behind.post(f"/v1/fleet/{path}", **headers)

    assert poll("first") == 200
    for path in ("activate-node", "deactivate-node", "pull-messages", "push-object"):
        assert poll("copy", path) == 409
        assert poll("", path) == 409
    assert behind.seen == 1
    assert poll("first") == 200
    assert behind.headers[COPIED_HEADER.encode()] == b"1"
    assert poll("first") == 200
    assert COPIED_HEADER.encode() not in behind.headers
    assert (instances.copied(), instances.copied()) == ([b"key"], [])
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
    assert instances.copied() == []
