"""The gate before a SuperLink: paths, secret, sizes, and how much one node may send in a round."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from hush.engines.gate import LIMIT_HEADER, LIMIT_PATH, REQUEST_CAP, SECRET_HEADER, Gate, Listed

UPLOAD = "/v1/fleet/push-object"


class Behind:
    """What stands behind the gate, and answers with the status that it is told to."""

    def __init__(self) -> None:
        self.status, self.seen = 200, 0
        self.gate = Gate(self, "secret", cap=1000)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen += 1
        await send({"type": "http.response.start", "status": self.status, "headers": []})

    def post(self, path: str, size: int | None = 0, **headers: str) -> int:
        """The status that a request of this size gets."""
        given = [(key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()]
        given += [] if size is None else [(b"content-length", str(size).encode())]
        told: list[int] = []

        async def send(event: Any) -> None:
            if event["type"] == "http.response.start":
                told.append(event["status"])

        asyncio.run(self.gate({"type": "http", "method": "POST", "path": path, "headers": given}, None, send))
        return told[0]

    def limit(self, size: object, secret: str = "secret") -> int:
        return self.post(LIMIT_PATH, **{SECRET_HEADER: secret, LIMIT_HEADER: str(size)})


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
    behind.gate = Gate(behind, "secret")
    assert behind.limit(1000, "guess") == 403
    assert behind.limit("much") == 400
    assert behind.post(UPLOAD, 1 << 20) == 200
    assert behind.limit(1000) == 200
    assert behind.post(UPLOAD, 1 << 20) == 413
    assert behind.post(UPLOAD, 2000) == 200
    assert behind.post("/v1/control/start-run", 1 << 30, hush_coordinator="secret") == 200


def test_a_node_sends_a_few_answers_a_round_and_no_more() -> None:
    behind = Behind()
    behind.gate = Gate(behind, "secret")
    behind.limit(1000)

    def sends(key: str) -> int:
        return sum(behind.post(UPLOAD, 60_000, flwr_public_key=key) == 200 for _ in range(20))

    assert sends("one") == 4
    assert sends("two") == 4
    behind.limit(1000)
    assert sends("one") == 4


def test_who_names_anothers_key_uses_up_nothing_of_it() -> None:
    behind = Behind()
    behind.gate = Gate(behind, "secret")
    behind.limit(1000)
    behind.status = 401
    assert [behind.post(UPLOAD, 60_000, flwr_public_key="one") for _ in range(20)] == [401] * 20
    behind.status = 200
    assert behind.post(UPLOAD, 60_000, flwr_public_key="one") == 200


def test_only_listed_keys_pass_and_nobody_before_the_list_is_known() -> None:
    behind, listed = Behind(), Listed()
    behind.gate = Gate(behind, "secret", REQUEST_CAP, listed)
    polls = [{"flwr_public_key": base64.b64encode(key).decode()} for key in (b"one", b"two")]
    assert [behind.post("/v1/fleet/pull-messages", **poll) for poll in polls] == [503, 503]
    assert behind.post("/v1/control/start-run", hush_coordinator="secret") == 200
    listed.name([b"one"])
    assert [behind.post("/v1/fleet/pull-messages", **poll) for poll in polls] == [200, 403]
    assert behind.post("/v1/fleet/pull-messages") == 403
    listed.name([])
    assert [behind.post("/v1/fleet/pull-messages", **poll) for poll in polls] == [403, 403]
