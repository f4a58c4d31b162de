"""Ledgers that outlive a run, and what clients tell at enrolment."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import hush
from hush.privacy.ledger import Ledger
from hush.server.run_directory import MANIFEST, RunDir, read_json
from hush.terminal import show_run
from hush.types import HushError, NothingTrainedError

SMALL: dict[str, Any] = {
    "rounds": 4,
    "data": {"clients": 3},
    "privacy": {"budgets": [1.0, 2.0, 4.0], "delta": 1e-4},
    "local": {"batch_size": 32},
    "recipe": {"name": "dp-fedavg"},
}


class StopError(Exception):
    """What ends a run in the middle."""


def stop(record: Any) -> None:
    if record.round == 2:
        raise StopError


def with_lifetime(**changes: Any) -> dict[str, Any]:
    return {**SMALL, "privacy": {**SMALL["privacy"], **changes}}


SEEDED = with_lifetime(noise="seeded")  # where results are compared to the bit


def spent(directory: Path) -> list[float]:
    found = []
    for path in sorted(directory.glob("client-*.ledger")):
        with Ledger.open(path) as ledger:
            found.append(ledger.spent())
    return found


def test_a_second_run_goes_on_from_what_is_spent(tmp_path: Path) -> None:
    config = with_lifetime(lifetime=[2.0, 2.0, 40.0])
    first = hush.simulate(config, ledgers=tmp_path / "books", out=tmp_path / "one")
    assert spent(tmp_path / "books") == pytest.approx([g.epsilon_spent for g in first.guarantees])
    assert all((path.stat().st_mode & 0o777) == 0o600 for path in (tmp_path / "books").glob("*.ledger"))
    second = hush.simulate(config, ledgers=tmp_path / "books", out=tmp_path / "two")
    after = spent(tmp_path / "books")
    assert [g.epsilon_spent for g in second.guarantees] == pytest.approx(after), "cards tell the whole life"
    assert after[0] > 1.2 * spent_of(first, 0) and after[0] <= 2.0
    assert after[1] == pytest.approx(spent_of(first, 1)), "its life's budget was spent by the first run"
    assert second.guarantees[1].rounds == 4 and second.guarantees[2].rounds == 8
    assert hush.simulate(SMALL).guarantees[0].rounds == 4, "without files a ledger lives as long as its run"


def spent_of(result: hush.RunResult, client: int) -> float:
    return result.guarantees[client].epsilon_spent or 0.0


def test_noise_that_is_left_open_is_secure_where_a_ledger_file_is_spent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = hush.simulate(SMALL)
    kept = hush.simulate(SMALL, ledgers=tmp_path / "books", out=tmp_path / "run")
    chosen = hush.simulate({**SMALL, "privacy": {**SMALL["privacy"], "noise": "secure"}}, ledgers=tmp_path / "others")
    assert {card.noise for card in plain.guarantees} == {"seeded (not private)"}
    assert {card.noise for card in (*kept.guarantees, *chosen.guarantees)} == {"secure"}
    assert read_json(tmp_path / "run" / MANIFEST)["config"]["privacy"]["noise"] == "secure"
    assert kept.config_hash == chosen.config_hash != plain.config_hash
    assert plain.config_hash == hush.simulate(SEEDED).config_hash
    assert kept.accuracy != plain.accuracy, "nobody can draw it again"
    assert not [text for text in kept.warnings if "seeded" in text]
    assert not caplog.records


def test_seeded_noise_with_ledger_files_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StopError):
        hush.simulate(SEEDED, ledgers=tmp_path / "books", out=tmp_path / "run", progress=stop)
    assert len([record for record in caplog.records if "nothing is private" in record.getMessage()]) == 1
    found = hush.simulate(SEEDED, ledgers=tmp_path / "books", out=tmp_path / "run", resume=True)
    assert len([text for text in found.warnings if "with ledger files" in text]) == 1


def test_a_run_that_nobody_can_afford_says_so(tmp_path: Path) -> None:
    hush.simulate(SMALL, ledgers=tmp_path / "books")
    before = spent(tmp_path / "books")
    with pytest.raises(hush.NothingTrainedError, match="none of the 3 clients could afford a round") as caught:
        hush.simulate(SMALL, ledgers=tmp_path / "books", out=tmp_path / "run")
    assert not caught.value.result.trained
    assert caught.value.result.out_of_budget == {0: 1, 1: 1, 2: 1}
    assert spent(tmp_path / "books") == before


def test_the_stricter_of_config_and_ledger_holds_and_is_said(tmp_path: Path) -> None:
    books = tmp_path / "books"
    first = hush.simulate(with_lifetime(budgets=1.0, lifetime=8.0), ledgers=books)
    assert [(g.epsilon_budget, g.delta) for g in first.guarantees] == [(8.0, 1e-4)] * 3
    assert first.warnings == ()
    tightened = hush.simulate(with_lifetime(budgets=1.0, lifetime=1.2), ledgers=books, out=tmp_path / "run")
    assert all(g.epsilon_budget == 1.2 and (g.epsilon_spent or 9) <= 1.2 for g in tightened.guarantees)
    assert "client 0: its ledger's lifetime budget of 8 is tightened to the config's 1.2" in tightened.warnings
    assert RunDir(tmp_path / "run").finished().warnings == tightened.warnings
    for lifetime in (8.0, None):
        with pytest.raises(NothingTrainedError) as ended:
            hush.simulate(with_lifetime(budgets=1.0, lifetime=lifetime), ledgers=books)
        later = ended.value.result
        assert all(g.epsilon_budget == 1.2 and (g.epsilon_spent or 9) <= 1.2 for g in later.guarantees)
        assert len(later.warnings) == (3 if lifetime else 0)
    before = spent(books)
    for words in ({"lifetime": 0.5}, {"delta": 1e-7, "lifetime": 1.2}):
        with pytest.raises(HushError, match=r"client-0\.ledger: has spent epsilon .*; accepted: a privacy\.lifetime"):
            hush.simulate(with_lifetime(budgets=1.0, **words), ledgers=books)
    assert spent(books) == before
    assert "tightened" in shown(tightened, tmp_path)


def test_a_stricter_delta_holds_and_a_relation_does_not_change(tmp_path: Path) -> None:
    books = tmp_path / "books"
    hush.simulate(with_lifetime(budgets=0.5, lifetime=8.0), ledgers=books)
    result = hush.simulate(with_lifetime(budgets=0.5, lifetime=8.0, delta=1e-5), ledgers=books)
    assert {g.delta for g in result.guarantees} == {1e-5}
    assert "client 1: its ledger's delta of 0.0001 is tightened to the config's 1e-05" in result.warnings
    with pytest.raises(HushError, match=r"client-0\.ledger: keeps add-remove, the config has replace-one"):
        hush.simulate(with_lifetime(budgets=0.5, lifetime=8.0, relation="replace-one"), ledgers=books)


def shown(result: hush.RunResult, path: Path) -> str:
    with redirect_stdout(io.StringIO()) as out:
        show_run(result, path)
    return out.getvalue()


def test_a_stopped_run_with_files_resumes_without_paying_twice(tmp_path: Path) -> None:
    with pytest.raises(StopError):
        hush.simulate(SEEDED, ledgers=tmp_path / "books", out=tmp_path / "run", progress=stop)
    resumed = hush.simulate(SEEDED, ledgers=tmp_path / "books", out=tmp_path / "run", resume=True)
    whole = hush.simulate(SEEDED)
    assert [g.rounds for g in resumed.guarantees] == [4, 4, 4]
    assert resumed.accuracy == whole.accuracy
    assert [g.epsilon_spent for g in resumed.guarantees] == [g.epsilon_spent for g in whole.guarantees]


def test_an_answer_that_was_sent_is_sent_again_as_the_same_bytes(tmp_path: Path) -> None:
    """The server loses what came in round 2, and asks again; later it loses everything."""
    run, kept = tmp_path / "run", tmp_path / "kept"

    def lose(record: Any) -> None:
        (newest,) = run.glob("checkpoint-*.safetensors")
        if record.round == 1:
            kept.write_bytes(newest.read_bytes())
        else:
            newest.rename(newest.with_name("checkpoint-000001.safetensors")).write_bytes(kept.read_bytes())
            raise StopError

    with pytest.raises(StopError):
        hush.simulate(SEEDED, ledgers=tmp_path / "books", out=run, progress=lose)
    before = spent(tmp_path / "books")
    resumed = hush.simulate(SEEDED, ledgers=tmp_path / "books", out=run, resume=True)
    whole = hush.simulate(SEEDED)
    assert resumed.accuracy == whole.accuracy and resumed.loss == whole.loss
    assert [g.rounds for g in resumed.guarantees] == [4, 4, 4]
    assert spent(tmp_path / "books") == pytest.approx([g.epsilon_spent for g in whole.guarantees])
    assert all(a < b for a, b in zip(before, spent(tmp_path / "books"), strict=True))
    for checkpoint in run.glob("checkpoint-*.safetensors"):
        checkpoint.unlink()
    (run / "result.json").unlink()
    again = hush.simulate(SEEDED, ledgers=tmp_path / "books", out=run, resume=True)
    assert [g.rounds for g in again.guarantees] == [4, 4, 4], "nothing is charged twice"


def test_noisy_counts_are_charged_once_and_set_the_weights(tmp_path: Path) -> None:
    noisy = {**SMALL, "recipe": {"weight": {"rule": "samples", "counts": "noisy", "share": 0.5}}}
    records: list[Any] = []
    result = hush.simulate(noisy, out=tmp_path / "run", progress=records.append)
    assert not any("number of training samples" in line for line in result.not_covered)
    assert all((g.epsilon_spent or 0) <= (g.epsilon_budget or 0) for g in result.guarantees)
    assert [g.rounds for g in result.guarantees] == [5, 5, 5], "enrolment and four rounds"
    assert result.guarantees[0].stages[0][0]["what"] == "number of training samples"
    assert len(set(records[0].weights.values())) == 3, "equal counts, unequal noise"
    assert records[0].weights == records[3].weights
    public = hush.simulate(SMALL)
    noise = [g.noise_multiplier or 0 for g in result.guarantees], [g.noise_multiplier or 0 for g in public.guarantees]
    assert all(a > b for a, b in zip(*noise, strict=True)), "the count leaves less for training"


def test_noisy_counts_survive_a_resume(tmp_path: Path) -> None:
    noisy = {**SMALL, "recipe": {"weight": {"rule": "samples", "counts": "noisy"}}}

    with pytest.raises(StopError):
        hush.simulate(noisy, out=tmp_path / "run", progress=stop)
    resumed = hush.simulate(noisy, out=tmp_path / "run", resume=True)
    whole = hush.simulate(noisy)
    assert resumed.accuracy == whole.accuracy
    assert [g.epsilon_spent for g in resumed.guarantees] == [g.epsilon_spent for g in whole.guarantees]


@pytest.mark.parametrize(("started", "resumed"), [("one", "two"), ("one", None), (None, "two")])
def test_a_run_is_resumed_with_the_ledgers_it_was_started_with(
    tmp_path: Path, started: str | None, resumed: str | None
) -> None:
    def ledgers(name: str | None) -> Path | None:
        return None if name is None else tmp_path / name

    with pytest.raises(StopError):
        hush.simulate(SMALL, out=tmp_path / "run", ledgers=ledgers(started), progress=stop)
    with pytest.raises(HushError, match=r"was started with .*, and is resumed with .*; accepted: the ledgers"):
        hush.simulate(SMALL, out=tmp_path / "run", ledgers=ledgers(resumed), resume=True)
    assert not (tmp_path / "two").exists()
    whole = hush.simulate(SMALL, out=tmp_path / "run", ledgers=ledgers(started), resume=True)
    assert [g.rounds for g in whole.guarantees] == [4, 4, 4]


def test_ledgers_that_lack_rounds_of_a_run_do_not_resume_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StopError):
        hush.simulate(SMALL, out=tmp_path / "run", ledgers=tmp_path / "books", progress=stop)
    (tmp_path / "books").rename(tmp_path / "away")
    monkeypatch.setenv("HUSH_WITNESS", str(tmp_path / "witness"))
    with pytest.raises(HushError, match=r"client-0\.ledger: has no charge for round 1 of the run to resume; accepted"):
        hush.simulate(SMALL, out=tmp_path / "run", ledgers=tmp_path / "books", resume=True)


def test_a_lifetime_that_means_little_is_warned_of(tmp_path: Path) -> None:
    result = hush.simulate(with_lifetime(lifetime=[2.0, 4.0, 100.0]), ledgers=tmp_path / "books")
    assert [any("epsilon" in text for text in card.warnings) for card in result.guarantees] == [False, False, True]
    assert any("epsilon" in text for text in result.warnings)
