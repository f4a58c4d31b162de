"""The SuperLink as a separate process, behind the gateway."""

from __future__ import annotations

import datetime
import gc
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

from hush.deploy.transport.downloads import Downloads
from hush.deploy.transport.gateway import REQUEST_CAP, Gateway, Instances, Listed

_IN_MEMORY = ":flwr-in-memory:"


def superlink(
    host: str, port: int, certificate: Mapping[str, Path], secret: str, listed: Listed, instances: Instances,
    downloads: Downloads, renewal: Callable[[Callable[[], None]], None] = lambda reload: None,
) -> None:  # fmt: skip
    """Run a SuperLink until the process is stopped. `certificate` has the paths `ca`, `certificate` and `key`.

    `renewal` is called before it starts, with a function that has new connections use the certificate as it is then.

    Nodes are accepted as soon as `listed` contains them; `instances` records which process uses each key; `downloads`
    answers requests for deliveries.

    Nothing is stored on disk: members have their ledgers, the coordinator its run directory, and both repeat lost
    messages.
    """
    import uvicorn
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
    from flwr.superlink.config_loader import SuperLinkLifespanConfig, load_control_authn_plugin
    from flwr.superlink.main import create_app

    files = [str(certificate[name]) for name in ("ca", "certificate", "key")]
    ca, server, key = (Path(file).read_bytes() for file in files)
    config = SuperLinkLifespanConfig(
        control_address="", health_server_address=None, host=host, port=port, insecure=False,
        certificates=(ca, server, key), superexec_auth_secret=None, authn_plugin=load_control_authn_plugin(),
        event_log_plugin=None, fleet_event_log_plugin=None, enable_event_log=False, artifact_provider=None,
        enable_supernode_auth=True, fleet_api_type="grpc-rere", fleet_api_address=None, simulation=False,
        ssl_ca_certfile=files[0], ssl_certfile=files[1], ssl_keyfile=files[2], database=_IN_MEMORY,
        isolation="process", runtime_dependency_install=False,
    )  # fmt: skip
    app = Gateway(
        create_app(config, SuperLinkLifespan), secret, REQUEST_CAP, listed, instances, _genuine, downloads=downloads
    )
    # Requests end up in reference cycles. With all imported objects frozen, the collector finds the cycles quickly and
    # messages from members do not accumulate.
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 5, 2)
    served = uvicorn.Config(
        app, host=host, port=port, ssl_certfile=files[1], ssl_keyfile=files[2], access_log=False, log_level="warning",
        workers=1, timeout_graceful_shutdown=2,
    )  # fmt: skip
    served.load()
    context: Any = served.ssl
    renewal(lambda: context.load_cert_chain(files[1], files[2]))
    uvicorn.Server(served).run()


def _genuine(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a node's request is signed with the key that it names, and recently: the rules of Flower's own check."""
    public, stamp, signature = (
        headers.get(name.encode(), b"")
        for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, TIMESTAMP_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
    )
    try:
        signed = datetime.datetime.fromisoformat(stamp.decode("ascii"))
        age = (datetime.datetime.now(datetime.UTC) - signed).total_seconds()
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            return False
        return bool(verify_signature(_public_key(public), stamp, b64decode(signature)))
    except (ValueError, TypeError):
        return False


@lru_cache(maxsize=1024)
def _public_key(text: bytes) -> Any:
    return bytes_to_public_key(b64decode(text))
