"""Certificates: what they say of a run is true of it, and whatever is changed in their files is found."""

from __future__ import annotations

import copy
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("reportlab", reason="needs the certificate extra")

from hush import HushError, Simulation
from hush.certificate import facts as facts_of
from hush.certificate.files import PAGE, PDF, SIGNED, write
from hush.certificate.sections import content
from hush.certificate.signature import MAGIC, fingerprint, plain_text, signed, verified
from hush.deploy.admin import folders, keys
from hush.deploy.shared import delivery

X, Y = np.random.default_rng(1).normal(size=(240, 4)).astype(np.float32), np.arange(240) % 3


def simulation(**more: Any) -> Simulation:
    given: dict[str, Any] = {
        "clients": 2, "rounds": 2, "recipe": "dp-fedavg", "epsilon": [1.0, 4.0], "delta": 1e-3, "batch_size": 16,
        "partition": "iid", "lr": 0.1, "noise": "secure",
    }  # fmt: skip
    return Simulation((X, Y), "logreg", **{**given, **more})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certified") / "run"
    simulation().fit(path)
    return path


@pytest.fixture(scope="module")
def made(run: Path) -> Path:
    write(run)
    return run


def text_of(path: Path) -> str:
    return "\n".join(json.loads(json.loads((path / SIGNED).read_bytes())["statement"])["text"])


def changed(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every leaf of a JSON value, changed to something else of its kind."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from changed(each, (*where, key))
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from changed(each, (*where, at))
    elif isinstance(value, bool) or value is None:
        yield where, not value
    else:
        yield where, value + (1 if isinstance(value, int | float) else "x")


def with_change(statement: Any, where: tuple[Any, ...], value: Any) -> Any:
    other = copy.deepcopy(statement)
    inside = other
    for key in where[:-1]:
        inside = inside[key]
    inside[where[-1]] = value
    return other


def test_a_change_of_any_field_is_found(made: Path, tmp_path: Path) -> None:
    words = json.loads((made / SIGNED).read_bytes())
    assert verified(made / SIGNED).statement["facts"]["run"]
    statement, tried = json.loads(words["statement"]), 0
    for where, value in changed(statement):
        text = json.dumps(with_change(statement, where, value), sort_keys=True, indent=1, ensure_ascii=False)
        (tmp_path / SIGNED).write_bytes(written({**words, "statement": text}))
        with pytest.raises(HushError, match="changed after it was signed"):
            verified(tmp_path / SIGNED)
        tried += 1
    assert tried > 70
    for name in words:
        for other in (words[name] + "x", words[name].upper() + " ", ""):
            if other != words[name]:
                (tmp_path / SIGNED).write_bytes(written({**words, name: other}))
                with pytest.raises(HushError):
                    verified(tmp_path / SIGNED)
    raw = (made / SIGNED).read_bytes()
    for at in range(0, len(raw), len(raw) // 200):
        (tmp_path / SIGNED).write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with pytest.raises(HushError):
            verified(tmp_path / SIGNED)


def test_nonsense_that_somebody_signed_is_refused_in_one_line(made: Path, tmp_path: Path) -> None:
    words, key = json.loads((made / SIGNED).read_bytes()), keys.new_key()
    good = json.loads(words["statement"])
    for statement in ("[]", "1", "{}", "{", json.dumps({**good, "files": []}), json.dumps({**good, "text": [1]})):
        signature = keys.signature(key, MAGIC + statement.encode()).hex()
        own = {"statement": statement, "signature": signature, "public_key": keys.public_pem(key).decode()}
        (tmp_path / SIGNED).write_bytes(written({**words, **own}))
        with pytest.raises(HushError, match="not a certificate of this version"):
            verified(tmp_path / SIGNED)


def written(words: dict[str, str]) -> bytes:
    return json.dumps(words, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


@pytest.mark.parametrize("name", [PAGE, PDF])
def test_a_changed_page_is_found_and_a_missing_one_is_said(made: Path, tmp_path: Path, name: str) -> None:
    for each in (PAGE, PDF, SIGNED):
        (tmp_path / each).write_bytes((made / each).read_bytes())
    assert f"{name}: as it was signed" in verified(tmp_path / SIGNED).checks
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(HushError, match="not the file that was signed"):
        verified(tmp_path / SIGNED)
    (tmp_path / name).unlink()
    assert f"{name}: not here, so not verified" in verified(tmp_path / SIGNED).checks


def test_who_signs_it_again_is_found_with_trust_alone(made: Path, tmp_path: Path) -> None:
    """A self-signed key proves possession of the key, and no more: the fingerprint tells, and so does --trust."""
    honest = verified(made / SIGNED)
    public = tmp_path / "officer.pub"
    public.write_text(json.loads((made / SIGNED).read_bytes())["public_key"])
    assert any("signed with the key in" in each for each in verified(made / SIGNED, public).checks)
    facts = copy.deepcopy(dict(honest.statement["facts"]))
    facts["clients"][0]["epsilon"] = 0.01
    stranger = keys.new_key()
    (tmp_path / SIGNED).write_bytes(signed(facts, content(facts), {}, stranger))
    found = verified(tmp_path / SIGNED)
    assert found.fingerprint == fingerprint(stranger) != honest.fingerprint
    assert "not who that is" in found.checks[-1]
    with pytest.raises(HushError, match="another key"):
        verified(tmp_path / SIGNED, public)


def test_it_says_what_the_cards_say(made: Path) -> None:
    result, text = json.loads((made / "result.json").read_bytes()), text_of(made)
    page = (made / PAGE).read_text(encoding="utf-8")
    facts = verified(made / SIGNED).statement["facts"]
    for client, card in zip(facts["clients"], result["guarantees"], strict=True):
        assert client["epsilon"] == max(card["epsilon_spent"], card["epsilon_filter"])
        assert (client["delta"], client["budget"]) == (card["delta"], card["epsilon_budget"])
        assert f"{card['delta']:g}" in text
    for gap in result["not_covered"]:
        assert gap in text
    assert "One row of data of one participant" in text and "Against the server" in text
    assert "recomputed" in text and "This run was not attacked" in text
    assert "no ledger outlives it" in text
    assert all(html.escape(line.removesuffix(":")) in page for line in plain_text(content(facts)) if " | " not in line)
    # Every symbol of a formula stands in a sentence that says what the number means.
    assert all(len(line) > 80 for line in text.splitlines() if "^" in line)
    assert (made / PDF).read_bytes().startswith(b"%PDF-")


def pages_of(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf))


def test_the_pdf_is_one_page_also_for_many_participants_with_long_names(made: Path) -> None:
    from hush.certificate.pdf import pdf

    facts = copy.deepcopy(dict(verified(made / SIGNED).statement["facts"]))
    one = facts["clients"][0]
    names = [f"clinic of a long name, number {at}, <b>{'病院' * 3}" for at in range(40)]
    facts["clients"] = [{**one, "name": name, "epsilon": 0.1 + at / 50} for at, name in enumerate(names)]
    facts["not_covered"] = [f"{at}: {'something that no accountant covers ' * 4}" for at in range(12)]
    for given in (verified(made / SIGNED).statement["facts"], facts):
        assert pages_of(pdf("Privacy certificate", content(given), "SHA256:00")) == 1
    assert "30 more" in "\n".join(plain_text(content(facts)))


@pytest.mark.parametrize(
    ("more", "texts"),
    [
        ({"noise": "seeded"}, ["An experiment: not private"]),
        ({"recipe": "fedavg"}, ["No privacy guarantee", "no bound"]),
        ({"person": np.arange(240) // 4}, ["One person", "keys for one person", "persons"]),
        ({"unit": "client"}, ["One participant with all of its data"]),
        ({"relation": "replace-one", "epsilon": 30.0}, ["with other data in its place", "some guarantees are weak"]),
        ({"row_budgets": np.where(np.arange(240) % 3, 0.5, 4.0)}, ["Rows have budgets of their own", "budget 0.5"]),
    ],
)
def test_each_kind_of_run_is_named_as_what_it_is(more: dict[str, Any], texts: list[str], tmp_path: Path) -> None:
    simulation(**more).fit(tmp_path / "run")
    write(tmp_path / "run", with_pdf=False, recompute=False)
    said = text_of(tmp_path / "run")
    assert all(text in said for text in texts)
    if "noise" in more or "recipe" in more:
        assert "Protected" not in said


def test_right_guesses_are_the_most_that_a_guarantee_allows() -> None:
    """By simulation of the worst mechanism: with probability delta all is told, else randomised response."""
    from hush.certificate.sections import right_guesses

    rng = np.random.default_rng(1)
    for epsilon, delta in ((0.5, 0.0), (2.0, 0.05)):
        revealed = rng.random(200_000) < delta
        honest = rng.random(200_000) < np.exp(epsilon) / (1 + np.exp(epsilon))
        assert right_guesses(epsilon, delta) == pytest.approx(float((revealed | honest).mean()), abs=0.005)
    assert right_guesses(0.0, 0.0) == 0.5


def test_an_audit_is_described_in_plain_words_and_only_of_this_run(run: Path, tmp_path: Path) -> None:
    card = json.loads((run / "result.json").read_bytes())["guarantees"][1]
    audit = {
        "client": 1, "kind": "one-run", "epsilon_claimed": card["epsilon_spent"], "epsilon_lower": 1.25, "delta": 1e-3,
        "relation": "add-remove", "confidence": 0.95, "runs": 100, "canaries": 32, "rounds": 2, "steps": 20,
        "releases": [{"what": "model update", "times": 2, "audited": 2}], "not_audited": ["privacy plan"],
        "noise": "secure",
    }  # fmt: skip
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(audit))
    write(run, tmp_path, audit=path, with_pdf=False, recompute=False)
    said = text_of(tmp_path)
    assert (
        "at least 1.25, with 95 % confidence" in said
        and "Looked at: model update. Not looked at: privacy plan." in said
    )
    for key, value in (("epsilon_claimed", 2.0), ("delta", 1e-4), ("relation", "replace-one"), ("client", 0)):
        path.write_text(json.dumps({**audit, key: value}))
        with pytest.raises(HushError, match=r"audits a claim|not the output"):
            write(run, tmp_path, audit=path, with_pdf=False, recompute=False)
    path.write_text(json.dumps({**audit, "epsilon_lower": 9.0}))
    write(run, tmp_path, audit=path, with_pdf=False, recompute=False)
    assert "must not be relied upon" in text_of(tmp_path)


def test_no_certificate_for_a_card_that_is_wrong(run: Path, tmp_path: Path) -> None:
    for path in run.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    result = json.loads((tmp_path / "result.json").read_bytes())
    result["guarantees"][1]["epsilon_spent"] *= 0.9
    (tmp_path / "result.json").write_text(json.dumps(result))
    with pytest.raises(HushError, match="differ when they are recomputed"):
        write(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> folders.FederationFolder:
    return folders.create(tmp_path_factory.mktemp("fed") / "fed", ["north", "south"], "127.0.0.1:8443")


def delivered(place: folders.FederationFolder, card: Any, folder: Path) -> Path:
    """A fetched model's directory, with the coordinator's certificate for one member."""
    content = {
        "federation": "fed", "run": "spring", "id": "ab12", "member": "north", "members": ["north", "south"],
        "recipe": "hush", "model": "logreg", "rounds": 2, "ended": "all rounds are done", "delivered": "2026-01-01",
        "config_hash": "00ff", "guarantee": card, "not_covered": ["a gap"], "warnings": [], "versions": {"hush": "1"},
    }  # fmt: skip
    packed = delivery.packed(
        {"certificate.json": json.dumps(content).encode()},
        {"federation": "fed", "run": "spring", "member": "north"}, *place.signer(),
    )  # fmt: skip
    found = delivery.opened(packed, place.ca(), "north")
    for name, each in found.files.items():
        (folder / name).write_bytes(each)
    (folder / delivery.SIGNED).write_text(json.dumps(found.signed))
    return folder


def test_the_certificate_of_a_delivery_is_the_coordinators(
    run: Path, place: folders.FederationFolder, tmp_path: Path
) -> None:
    card = json.loads((run / "result.json").read_bytes())["guarantees"][0]
    folder, ca = delivered(place, card, tmp_path), tmp_path / "ca.crt"
    ca.write_bytes(place.ca())
    write(folder)
    assert "that the coordinator of this federation signed for this member" in verified(folder / SIGNED, ca).checks[-1]
    assert "federation fed" in text_of(folder) and "north" in text_of(folder)
    # A member who states another epsilon, with a valid signature of its own, is found.
    statement = json.loads(json.loads((folder / SIGNED).read_bytes())["statement"])
    for where, value in ((("facts", "clients", 0, "epsilon"), 0.01), (("source", "certificate.json"), "{}")):
        text = json.dumps(with_change(statement, where, value), sort_keys=True, indent=1, ensure_ascii=False)
        key = keys.new_key()
        (folder / SIGNED).write_bytes(written({
            "statement": text, "signature": keys.signature(key, MAGIC + text.encode()).hex(),
            "public_key": keys.public_pem(key).decode(), "key_certificate": "",
        }))  # fmt: skip
        assert verified(folder / SIGNED)
        with pytest.raises(HushError):
            verified(folder / SIGNED, ca)


def test_facts_of_a_run_of_a_federation_are_signed_by_its_coordinator(
    run: Path, place: folders.FederationFolder, tmp_path: Path
) -> None:
    folder = place.runs / "spring"
    folder.mkdir(exist_ok=True)
    for path in run.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "federation.json").write_text("{}")
    write(folder, with_pdf=False, recompute=False)
    ca = tmp_path / "ca.crt"
    ca.write_bytes(place.ca())
    assert "signed by the coordinator of this federation" in verified(folder / SIGNED, ca).checks
    other = folders.create(tmp_path / "other", ["north"], "127.0.0.1:8443")
    ca.write_bytes(other.ca())
    with pytest.raises(HushError, match="not signed by the CA"):
        verified(folder / SIGNED, ca)
    assert facts_of.of_run(folder, recompute=False)["federation"] == "fed"
