"""Who can read a dashboard: the token, the names, TLS, and a browser that looks at it."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hush.deploy.dashboard import service
from hush.live import Endpoint, background
from hush.types import HushError
from tests.support.dashboards import NAMES, Written
from tests.support.live_runs import chromium


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "study")


@pytest.fixture
def address(written: Written) -> Iterator[str]:
    path = written.place.path
    with background(service.page_of(path), endpoint=service.endpoint(path, "127.0.0.1", 0, None, None)) as found:
        yield found


def answer(url: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    asked = urllib.request.Request(url, method=method, headers={k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(asked, timeout=5) as found:
            return found.status, found.read().decode(), dict(found.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def test_nothing_is_answered_without_the_token_but_health(address: str, written: Written) -> None:
    origin, token = address.split("/?token=")
    assert token == (written.place.server / "dashboard.token").read_text()
    for path in ("/", "/events", "/metrics", "/stop", "/other"):
        for given in ({}, {"Authorization": f"Bearer {token[:-1]}x"}, {"Authorization": "Bearer"},
                      {"Authorization": f"Basic {token}"}, {"Cookie": f"token={token}"}):  # fmt: skip
            status, text, headers = answer(f"{origin}{path}", **given)
            assert status == 401, (path, given)
            assert NAMES[0] not in text
            assert headers["www-authenticate"] == "Bearer"
        assert answer(f"{origin}{path}?token={token[:-1]}x")[0] == 401
    status, text, _ = answer(f"{origin}/healthz")
    assert (status, text) == (503, "hush federation serve is not running\n")
    with written.serving():
        deadline = time.monotonic() + 5
        while answer(f"{origin}/healthz")[:2] != (200, "ok\n"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    for found in (answer(address), answer(f"{origin}/", Authorization=f"Bearer {token}")):
        assert found[0] == 200 and NAMES[0] in found[1]
        assert not [name for name in found[2] if name.lower().startswith(("access-control", "set-cookie"))]
        assert "frame-ancestors 'none'" in found[2]["content-security-policy"]
        assert found[2]["referrer-policy"] == "no-referrer"
    assert "hush_members 20.0" in answer(f"{origin}/metrics", Authorization=f"Bearer {token}")[1]
    openmetrics = answer(f"{origin}/metrics", Authorization=f"Bearer {token}", Accept="application/openmetrics-text")
    assert openmetrics[1].endswith("# EOF\n") and "openmetrics-text" in openmetrics[2]["content-type"]


def test_nothing_can_be_changed(address: str) -> None:
    origin, token = address.split("/?token=")
    for path in ("/", "/events", "/metrics", "/healthz"):
        for method in ("POST", "PUT", "DELETE"):
            assert answer(f"{origin}{path}?token={token}", method, Origin=origin)[0] == 405
    assert answer(f"{origin}/stop?token={token}", "POST", Origin=origin, X_Hush_Token=token)[0] == 404
    assert 'id="stop"' not in answer(address)[1]


def test_requests_for_other_hosts_are_refused(address: str) -> None:
    port = address.split(":")[2].split("/")[0]
    assert answer(address, Host=f"localhost:{port}")[0] == 200
    for other in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        f"127.0.0.1:{port}.evil.example",
        f"[::1]:{port}",
    ):
        assert answer(address, Host=other)[:2] == (421, "unknown host")


def test_other_machines_are_served_with_tls_alone(written: Written, tmp_path: Path) -> None:
    path, server = written.place.path, written.place.server
    found = service.endpoint(path, "0.0.0.0", 0, None, None)
    assert found.certificate == (server / "server.crt", server / "server.key")
    assert found.names == ("localhost", "127.0.0.1")
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "kit.toml").write_text('member = "a"\naddress = "here:1"\n')
    for listen in ("0.0.0.0", "fl.example.org", "10.0.0.1", "::"):
        with pytest.raises(HushError, match="needs --certificate and --key"):
            service.endpoint(tmp_path / "kit", listen, 0, None, None)
    with pytest.raises(HushError, match="both or neither"):
        service.endpoint(tmp_path / "kit", "127.0.0.1", 0, server / "server.crt", None)
    for listen in ("127.0.0.1", "localhost", "127.0.0.2", "::1"):
        assert service.endpoint(tmp_path / "kit", listen, 0, None, None).certificate is None
    trusted = ssl.create_default_context(cafile=server / "ca.crt")
    with background(service.page_of(path), endpoint=found) as address:
        assert address.startswith("https://localhost:")
        with urllib.request.urlopen(address, timeout=5, context=trusted) as page:
            assert page.status == 200
        with pytest.raises(OSError, match="closed connection"):
            urllib.request.urlopen(address.replace("https", "http"), timeout=5)
        for host, status in (("localhost:9999", 200), ("localhost", 200), ("evil.example", 421)):
            asked = urllib.request.Request(address, headers={"Host": host})
            try:
                with urllib.request.urlopen(asked, timeout=5, context=trusted) as page:
                    assert page.status == status
            except urllib.error.HTTPError as error:
                assert error.code == status


def test_names_with_a_wildcard_are_for_one_label() -> None:
    made = Endpoint(names=("*.example.org",), certificate=(Path("a"), Path("b")))
    assert made.accepts("fl.example.org:8322", 8322) and made.accepts("fl.example.org", 1)
    for other in ("example.org", "a.b.example.org", "example.org.evil", "evil.example"):
        assert not made.accepts(other, 8322), other


def test_a_token_that_others_can_read_is_refused(written: Written) -> None:
    file = written.place.server / "dashboard.token"
    first = service.token_of(written.place.path)
    assert (file.stat().st_mode & 0o777, len(first)) == (0o600, 64)
    assert service.token_of(written.place.path) == first
    file.chmod(0o644)
    with pytest.raises(HushError, match="others can read it"):
        service.token_of(written.place.path)
    file.unlink()
    assert service.token_of(written.place.path) != first
    file.write_text("short")
    with pytest.raises(HushError, match="5 characters; accepted: at least 32"):
        service.token_of(written.place.path)


def test_mistakes_are_one_line(tmp_path: Path, written: Written) -> None:
    with pytest.raises(HushError, match="accepted: the coordinator's directory, or a member's"):
        service.page_of(tmp_path)
    page, path = service.page_of(written.place.path), written.place.path
    unknown, certificate = Endpoint(host="nowhere.invalid"), path / "server" / "server.crt"
    with pytest.raises(HushError, match=r"--listen: nowhere\.invalid cannot"), background(page, endpoint=unknown):
        pass
    broken = tmp_path / "key"
    broken.write_text("no key")
    without = service.endpoint(path, "0.0.0.0", 0, certificate, broken)
    with pytest.raises(HushError, match="cannot be used for TLS"), background(page, endpoint=without):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_rounds_and_refusals_appear_live(address: str, written: Written, scheme: str) -> None:
    hostile = "<img src=x onerror=alert(1)> " + "x" * 200
    with chromium() as browser, written.serving(offline=(NAMES[1],)):
        context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 800})  # type: ignore[arg-type]
        page = context.new_page()
        asked: list[str] = []
        faults: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        page.goto(address)
        page.locator("#connection").filter(has_text="live").wait_for(timeout=5000)
        written.begin(left_out={"clinic-3": "the member declined the run"})
        written.round(1)
        page.locator("#tiles").filter(has_text="1 of 30").wait_for(timeout=5000)
        began = time.monotonic()
        written.round(2, refused={"clinic-4": hostile})
        page.locator("#state").filter(has_text="clinic-4 gave no update in round 2").wait_for(timeout=5000)
        assert time.monotonic() - began < 3
        page.locator("#chart-times path.line").first.wait_for(timeout=5000, state="attached")
        page.locator("#chart-privacy .narrow path.line").first.wait_for(timeout=5000)
        for width in (390, 768, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.locator("img").count() == 0
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
        assert dark == (scheme == "dark")
        assert {url.split("/")[2] for url in asked} == {address.split("/")[2]}
        assert faults == []


def test_no_key_is_held_and_nothing_that_trains_is_imported() -> None:
    code = (
        "import sys, hush.deploy.dashboard.service, hush.cli.main, hush.cli.federation; "
        "assert not {'torch', 'flwr', 'sqlalchemy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_the_command_serves_until_it_is_stopped(written: Written, tmp_path: Path) -> None:
    from tests.support.fork_server import fork_server

    with fork_server().tidy() as parent:
        child = parent.start(["federation", "dashboard", written.place.path], tmp_path / "log")
        child.wait_for("Dashboard: http://127.0.0.1:", 30)
        found, token = re.search(r"http://\S+/", child.said()), service.token_of(written.place.path)
        assert found is not None
        assert token not in child.said(), "logs are read by others"
        assert str(service.token_file(written.place.path)) in child.said()
        assert answer(f"{found[0]}?token={token}")[0] == 200
        other = parent.start(["federation", "dashboard", tmp_path], tmp_path / "other")
        assert other.status(30) == 2
        assert other.said().count("\n") == 1
        child.interrupt()
        child.ended(20)
