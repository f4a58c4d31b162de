from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hush.live import background, source_of
from hush.stop_request import stop_requested
from hush.types import HushError
from tests.support.live_runs import add_round, begun, chromium


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return begun(tmp_path / "run", 30)


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    with background(source_of(run), port=0) as found:
        yield found


def answer(url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    asked = urllib.request.Request(url, method=method, headers={k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(asked, timeout=5) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_only_this_host_is_answered(address: str) -> None:
    host = address.split("/")[2]
    assert answer(address)[0] == 200
    assert answer(address, Host=host.replace("127.0.0.1", "localhost"))[0] == 200
    for other in ("evil.example", "127.0.0.1", f"evil.example:{host.split(':')[1]}", f"{host}.evil.example"):
        assert answer(address, Host=other)[0] == 421


def test_only_the_page_with_its_token_can_stop(address: str, run: Path) -> None:
    origin, token = address.split("/?token=")
    stop = f"{origin}/stop"
    assert answer(stop)[0] == 405
    for headers in (
        {}, {"X_Hush_Token": token}, {"X_Hush_Token": "0" * 32, "Origin": origin},
        {"X_Hush_Token": token, "Origin": "http://evil.example"}, {"X_Hush_Token": token, "Origin": "null"},
    ):  # fmt: skip
        assert answer(stop, "POST", **headers)[0] == 403
        assert not stop_requested(run)
    assert 'id="stop"' not in answer(origin)[1] and 'id="stop"' not in answer(f"{origin}/?token=wrong")[1]
    assert 'id="stop"' in answer(address)[1]
    status, words = answer(stop, "POST", X_Hush_Token=token, Origin=origin)
    assert (status, stop_requested(run)) == (200, True) and "resumed with --resume" in words


def test_the_stream_sends_everything_and_then_what_changes(address: str, run: Path) -> None:
    add_round(run, 1)
    with urllib.request.urlopen(address.split("?")[0] + "events", timeout=5) as stream:

        def news() -> dict[str, str]:
            while not (line := stream.readline()).startswith(b"data: "):
                assert line
            return json.loads(line[6:])["parts"]

        shown = news()
        while "1 of 30" not in shown.get("tiles", "") or "privacy" not in shown:
            shown |= news()
        add_round(run, 2)
        more = news()
        while "2 of 30" not in more.get("tiles", ""):
            more |= news()
        assert "score" in more or "score" in news()


def test_a_port_in_use_is_one_line(address: str, run: Path) -> None:
    port = int(address.split("/")[2].split(":")[1])
    with pytest.raises(HushError, match=f"--port: {port} cannot be used"), background(source_of(run), port=port):
        pass
    with pytest.raises(HushError, match="a file"):
        source_of(run / "manifest.json")


def test_a_directory_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    with background(source_of(tmp_path / "later"), port=0) as found:
        assert "Waiting for a run" in answer(found)[1]
        begun(tmp_path / "later" / "one" / "seed-1", 30)
        begun(tmp_path / "later" / "two" / "seed-1", 30)
    with background(source_of(tmp_path / "later"), port=0) as found:
        words = answer(found)[1]
        assert "0 of 60" in words and ">one<" in words and ">two<" in words


@pytest.mark.slow
def test_in_a_browser_rounds_appear_and_the_button_stops(address: str, run: Path) -> None:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 800})
        asked: list[str] = []
        faults: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text))
        page.goto(address)
        for number in (1, 2, 3):
            add_round(run, number)
        page.locator("#tiles").filter(has_text="3 of 30").wait_for(timeout=5000)
        page.locator("#chart-privacy .narrow path.line").first.wait_for(timeout=5000)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.locator("#chart-score .drawing").focus()
        page.keyboard.press("End")
        assert "round 3" in page.locator(".tip").inner_text()
        page.click("#stop")
        assert not stop_requested(run)
        page.click("#stop")
        page.locator("#said").filter(has_text="resumed").wait_for(timeout=5000)
        assert stop_requested(run)
        assert {url.split("/")[2] for url in asked} == {address.split("/")[2]}
        assert faults == []
