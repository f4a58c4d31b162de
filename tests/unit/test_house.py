"""The house rules that no linter checks."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "hush"
FILES = sorted(SOURCE.rglob("*.py"))


def test_files_are_short() -> None:
    lines = {path.relative_to(SOURCE).as_posix(): len(path.read_text().splitlines()) for path in FILES}
    assert {name: n for name, n in lines.items() if n > 400} == {}
    assert statistics.median(lines.values()) < 150


def test_only_the_ledger_makes_receipts() -> None:
    makers = {path.name for path in FILES if re.search(r"(?<!class )\bReceipt\(", path.read_text())}
    assert makers == {"ledger.py"}


def test_noise_is_drawn_in_one_file() -> None:
    drawing = re.compile(
        r"\.normal_\(|\.uniform_\(|\.bernoulli_\(|\.random_\(|torch\.(bernoulli|multinomial|poisson)\("
    )
    assert {path.name for path in FILES if drawing.search(path.read_text())} <= {"noise.py"}


def test_privacy_and_local_state_guarantees_and_edge_cases() -> None:
    for path in FILES:
        if path.parent.name in ("privacy", "local") and path.name != "__init__.py":
            text = path.read_text()
            assert "Guarantees:" in text, path
            assert "Edge cases:" in text, path
