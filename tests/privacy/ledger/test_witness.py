"""The witness: whose directory it may be, and what damage to its files leads to."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from hush.privacy.ledger import Ledger
from hush.privacy.ledger.statement import retire
from hush.types import HushError, Policy

POLICY = Policy(3.0, 1e-5)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a witness of this test's own."""
    monkeypatch.setenv("HUSH_WITNESS", str(tmp_path / "witness"))
    (tmp_path / "ledgers").mkdir()
    return tmp_path / "witness"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_a_directory_that_others_can_write_to_is_refused(directory: Path, tmp_path: Path, mode: int) -> None:
    """Others could put a head back, and with it a ledger."""
    path = tmp_path / "ledgers" / "a"
    Ledger.create(path, "a", POLICY).close()
    directory.chmod(mode)
    for refused in (partial(Ledger.open, path), partial(Ledger.create, tmp_path / "ledgers" / "b", "b", POLICY)):
        with pytest.raises(HushError, match=r"others can write to it.*directory of your own"):
            refused()
    directory.chmod(0o755)
    Ledger.open(path).close()


def test_the_directory_of_another_user_is_refused(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger.create(tmp_path / "ledgers" / "a", "a", POLICY).close()
    owner = directory.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    with pytest.raises(HushError, match=f"owned by user {owner}"):
        Ledger.open(tmp_path / "ledgers" / "a")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b'{"path": 3, "ledger": 4}', b'{"path": "x", "more": 1}']
)
def test_a_damaged_place_is_said_in_one_line(directory: Path, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledgers" / "a"
    Ledger.create(path, "a", POLICY).close()
    (place,) = (directory / "places").iterdir()
    place.write_bytes(content)
    for use in (lambda: Ledger.open(path), lambda: retire(path)):
        with pytest.raises(HushError, match="damaged; accepted: the original file"):
            use()


def test_a_path_that_is_no_path_is_said_in_one_line(directory: Path) -> None:
    with pytest.raises(HushError, match="too long"):
        Ledger.open("a" * 5000)
