"""Expiry of the server's certificate: a member is warned days ahead, and of an expired one."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hush.deploy.admin import keys
from hush.deploy.member import expiry


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """A TLS server with the certificate of a folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        going = True

        def answer() -> None:
            while going:
                try:
                    connection, _ = listener.accept()
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    continue

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        going = False
        socket.create_connection(listener.getsockname()).close()
        thread.join()


def test_a_member_is_warned_days_ahead_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.make_authority(tmp_path, "study", 1000)
    ca = (tmp_path / "ca.crt").read_bytes()
    monkeypatch.setattr(keys, "_BACKDATED", timedelta(days=3))
    for days, words in ((90, ""), (12, "for 12 more days"), (-1, "expired on")):
        keys.make_server(tmp_path, ["127.0.0.1"], days)
        with server(tmp_path) as address:
            found = expiry.warning(address, ca)
            assert words in found and bool(found) == bool(words), (days, found)
            assert not words or "the coordinator renews it" in found
            if days == 90:
                later = datetime.datetime.now(datetime.UTC) + timedelta(days=85)
                assert "more days" in expiry.warning(address, ca, later)
        for name in ("server.key", "server.crt"):
            (tmp_path / name).unlink()
    assert expiry.warning("127.0.0.1:9", ca) == "", "an absent server is reported elsewhere"


def test_the_watch_tells_from_a_thread_and_ends(tmp_path: Path) -> None:
    keys.make_authority(tmp_path, "study", 1000)
    keys.make_server(tmp_path, ["127.0.0.1"], 5)
    warned, heard, ended = list[str](), threading.Event(), threading.Event()

    def tell(words: str) -> None:
        warned.append(words)
        heard.set()

    with server(tmp_path) as address:
        expiry.watch(address, (tmp_path / "ca.crt").read_bytes(), tell, ended)
        assert heard.wait(20)
    ended.set()
    assert "for 5 more days" in warned[0] or "for 4 more days" in warned[0]
