"""Nothing that came over the wire is printed raw: not in a terminal, not in a log, not on a page."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="needs the deploy extra")

from hush import report, terminal
from hush.deploy.admin import keys
from hush.deploy.admin.audit_log import AuditLog
from hush.deploy.coordinator.enrolment import facts_of
from hush.deploy.coordinator.replies import opened
from hush.deploy.shared.refusal import MEANING, REFUSAL, RefusalCode, reason_of
from hush.deploy.transport import messages
from hush.deploy.transport.messages import Message
from hush.pages.wording import safe
from hush.text import LONGEST, printable
from hush.types import HushError
from tests.support.fork_server import command
from tests.support.report_runs import CLIENTS, make_run, record

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of a library that Typer uses
    from hush.cli.federation import _say, round_lines

NUMBER = 1_000
PIECES = (
    "\x1b[2J", "\x1b[31m", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x9b2J", "\r", "\n", "\x08" * 9, "\x00",
    "\u202e", "\u2066", "\u200b", "\u2028", "\ufeff", "\u0301" * 5, "\ud800", "\U000e0041", "\x85", "\t",
    "<script>alert(1)</script>", "<img src=x onerror=alert(2)>", "[red]", "[/]", "round 99: updates from all",
    "\\", '"', "\u00e9", "\u4e2d", "x" * 400,
)  # fmt: skip


def hostile(number: int = NUMBER) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices(PIECES, k=draw.randint(1, 8))) for _ in range(number)]


def harmless(text: str, breaks: int = 0) -> bool:
    """One line (or so many breaks more) of characters that a terminal shows as they are."""
    return text.count("\n") <= breaks and all(each.isprintable() for each in text.replace("\n", ""))


def test_a_text_is_one_line_of_characters_that_show() -> None:
    for text in hostile():
        shown = printable(text)
        assert harmless(shown)
        assert len(shown) <= LONGEST
        assert harmless(printable(text, 20))
    assert printable("plain, r\u00e9sum\u00e9 \u4e2d") == "plain, r\u00e9sum\u00e9 \u4e2d"
    assert printable("a\x1b[2J\nb\u202e") == r"a\x1b[2J\nb\u202e"
    assert printable("x" * 10**6) == "x" * (LONGEST - 3) + "..."


def reasons(texts: list[str]) -> list[str]:
    """What the coordinator makes of members' answers that hold such texts in every place."""
    key, found = keys.new_key(), []
    for text in texts:
        # A lone surrogate cannot stand in JSON's UTF-8, and is not let in.
        sent = text.encode("utf-8", "replace").decode()
        forms: list[Message] = [
            Message(sent, {}), Message(REFUSAL, {"run": "r", "code": sent, "final": False}),
            Message(REFUSAL, {"run": "r", "code": "budget", "final": True, sent: 1, "reason": sent}),
            Message("facts", {"run": sent, "name": sent, "head": sent}),
            Message("facts", {**dict.fromkeys(("epsilon", "delta", "unit", "factor", "group", "noised"), sent),
                             "run": "r", "name": "m", "head": "", "samples": 1, "relation": sent}),
        ]  # fmt: skip
        for message in forms:
            try:
                got = opened(key.public_key(), keys.signed(key, messages.encode(message)), "facts", {})
                found.append(reason_of(got) if got.kind == REFUSAL else str(facts_of(got, "m", "r")))
            except HushError as error:
                found.append(printable(error))
    return found


def test_hostile_answers_reach_terminal_and_log_as_plain_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = hostile()
    seen = reasons(texts)
    assert len(seen) == 5 * NUMBER
    assert all(harmless(each) for each in seen)
    assert set(seen) & set(MEANING.values()) <= {MEANING[RefusalCode.BUDGET]}
    trail = AuditLog(tmp_path / "audit.jsonl")
    for text, reason in zip(texts[:200], seen, strict=False):
        _say(text)
        round_lines(5)(record(1, refused={0: text, 1: reason}), {f"m{client}": "1" for client in range(CLIENTS)})
        trail.note("refused", reason=text)
    shown = capsys.readouterr().err
    assert harmless(shown, breaks=400)
    log = (tmp_path / "audit.jsonl").read_text()
    assert log.isascii()
    assert harmless(log, breaks=200)


def test_hostile_texts_in_a_run_reach_its_page_as_plain_text(tmp_path: Path) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in hostile()]
    refused = dict(enumerate(texts[:CLIENTS]))
    words: Any = tuple(texts)
    run = make_run(tmp_path / "run", records=[record(1, refused=refused)], rounds=1, not_covered=words)
    report.write(run)
    page = (run / "report.html").read_text()
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    raw = {"\x1b", "\x9b", "\u202e", "\u2066", "\u200b", "\u2028", "\ufeff", "\x85", "\x08", "\x07", "\x00"}
    assert not raw & set(page)
    for text in texts:
        assert not raw & set(safe(text))


def test_names_of_recipes_files_and_seeds_reach_the_terminal_as_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables, titles and lines: no markup is read (a closing tag alone was a traceback), no control comes through."""
    terminal.show_comparison(
        {
            "seeds": hostile(3),
            "primary": "accuracy",
            "recipes": {
                text: {
                    "score": {"mean": 0.5, "std": 0.1},
                    "runs": [
                        {"worst": 0.4, "epsilon_spent_max": 1.0, "seconds": 1.0, "trained": False,
                         "seed": text, "ended": text}
                    ],
                    "not_covered": [text],
                    "warnings": [text],
                }
                for text in {"[/red]", "[link=http://x]name[/link]", ":warning:", *hostile(50)}
            },
        },
        Path("[/b]") / hostile(1)[0],
    )  # fmt: skip
    terminal.show_catalogue(
        {"recipes": {text: text for text in hostile(50)}, "slots": {"[/]": {text: text for text in hostile(50)}}}
        | {
            key: {text: text for text in hostile(9)}
            for key in ("models", "tasks", "losses", "metrics", "datasets", "partitions", "budgets")
        }
    )
    terminal.show_explanations(
        [{"word": text, "kind": text, "text": text, "facts": [(text, text)]} for text in hostile(9)]
    )
    shown = capsys.readouterr().out
    assert harmless(shown, breaks=1_000_000)
    assert "[link=http://x]name" in shown
    assert ":warning:" in shown
    assert "[/b]" in shown


def test_a_run_in_a_directory_with_a_hostile_name_is_shown(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('rounds = 1\n[recipe]\nname = "dp-fedavg"\n[data]\nclients = 2\n')
    for name in ("x[/red]", "\x1b[2J"):
        made = command("run", config, "--out", tmp_path / name, cwd=tmp_path)
        assert made.returncode == 0, made.stderr
        again = command("report", tmp_path / name, cwd=tmp_path)
        assert harmless(made.stdout + made.stderr + again.stdout, breaks=100)
