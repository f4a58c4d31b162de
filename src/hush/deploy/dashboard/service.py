"""The service of a dashboard: which page a folder has, its token, and where it may be served.

On an address of this machine a dashboard is served without TLS, elsewhere only with it. In both cases nothing is
answered without the token in the folder, except whether all is well.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from hush.deploy.admin import keys
from hush.deploy.dashboard.federation_page import FederationPage
from hush.deploy.dashboard.member_page import MemberPage
from hush.live import Endpoint, serve
from hush.live.server import LOCAL
from hush.types import HushError

PORT = 8322
TOKEN = "dashboard.token"


def serve_dashboard(
    path: Path, *, listen: str = LOCAL[0], port: int | None = None, certificate: Path | None = None,
    key: Path | None = None, opened: Callable[[str], None] = lambda address: None,
) -> None:  # fmt: skip
    """Serve the dashboard of a folder until Ctrl-C.

    Args:
        path: A coordinator's folder, or a member's kit.
        listen: The address or name to listen on.
        port: The port; None: 8322, or a free one if that is in use.
        certificate: A TLS certificate; on other addresses than those of this machine, a coordinator's own by default.
        key: Its key.
        opened: Called with the address of the page, which has the token.

    Raises:
        HushError: The folder is neither, or the address cannot be used.
    """
    if find_spec("prometheus_client") is None:
        raise HushError("dashboard: needs prometheus-client; install it with: pip install 'hush[ui]'")
    serve(page_of(path), opened=opened, endpoint=endpoint(path, listen, port, certificate, key))


def page_of(path: Path) -> FederationPage | MemberPage:
    """Return the page of a folder."""
    if (path / "federation.toml").exists():
        return FederationPage(path)
    if (path / "kit.toml").exists():
        return MemberPage(path)
    raise HushError(f"{path}: accepted: the coordinator's directory, or a member's directory (its kit)")


def endpoint(path: Path, listen: str, port: int | None, certificate: Path | None, key: Path | None) -> Endpoint:
    """Return where the dashboard of a folder is served, and the token that reading it needs."""
    if (certificate is None) != (key is None):
        raise HushError("--certificate, --key: accepted: both or neither")
    if certificate is None and not _local(listen):
        server = path / "server"
        if not (path / "federation.toml").exists():
            raise HushError(
                f"--listen: {listen} is reachable by other machines, so it needs --certificate and --key; without them "
                f"accepted: an address of this machine, such as {LOCAL[0]}"
            )
        certificate, key = server / "server.crt", server / "server.key"
    token, both = token_of(path), None
    names: tuple[str, ...] = LOCAL if listen in LOCAL else (f"[{listen}]" if ":" in listen else listen, *LOCAL)
    if certificate is not None and key is not None:
        names, both = keys.hosts(certificate), (certificate, key)
    return Endpoint(host=listen, port=port, usual=PORT, names=names, token=token, private=True, certificate=both)


def token_file(path: Path) -> Path:
    """Return the file with the token of a folder."""
    return (path / "server" if (path / "federation.toml").exists() else path) / TOKEN


def token_of(path: Path) -> str:
    """Return the token in a folder; created if there is none. Removing the file makes another one."""
    file = token_file(path)
    if not file.exists():
        keys.write_secret(file, keys.new_secret().encode())
    if file.stat().st_mode & 0o077 or file.stat().st_uid != os.geteuid():
        raise HushError(f"{file}: belongs to another user, or others can read it; accepted: mode 0600; remove it")
    token = keys.read(file, "the token of the dashboard").decode("ascii", "replace").strip()
    if len(token) < 32:
        raise HushError(f"{file}: {len(token)} characters; accepted: at least 32; remove it, and a new one is made")
    return token


def _local(listen: str) -> bool:
    try:
        return listen == "localhost" or ipaddress.ip_address(listen).is_loopback
    except ValueError:
        return False
