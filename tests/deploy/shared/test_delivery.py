"""Deliveries: what the coordinator signed for a member is used by it, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the deploy extra")

import hush
from hush.deploy.admin import folders, keys
from hush.deploy.admin.folders import FederationFolder, Kit, open_kit
from hush.deploy.coordinator.deliveries import of_member
from hush.deploy.member import fetch
from hush.deploy.shared import delivery
from hush.deploy.transport import downloads
from hush.deploy.transport.downloads import Downloads
from hush.trained_model import TrainedModel
from hush.types import HushError

FACTS = {"federation": "fed", "run": "run", "member": "north"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    return folders.create(tmp_path_factory.mktemp("signed") / "fed", ["north", "south"], "127.0.0.1:8443")


@pytest.fixture(scope="module")
def clustered() -> TrainedModel:
    """Three clients of two models."""
    sim = hush.Simulation("digits", "logreg", clients=3, epsilon=2.0, recipe="fedavg", rounds=1, seed=3)
    made = sim.fit().trained
    return replace(made, networks=(made.networks[0],) * 2, placed=(0, 1, 0), clients=("north", "south", "west"))


def made(place: FederationFolder, clustered: TrainedModel, member: str = "north") -> bytes:
    client = clustered.clients.index(member)
    files = {**hush.trained_model.contents(of_member(clustered, client, member)), "certificate.json": b"{}"}
    return delivery.packed(files, {**FACTS, "member": member}, *place.signer())


def test_a_delivery_is_the_members_own_model(place: FederationFolder, clustered: TrainedModel, tmp_path: Path) -> None:
    found = delivery.opened(made(place, clustered, "south"), place.ca(), "south")
    for name, content in found.files.items():
        (tmp_path / name).write_bytes(content)
    model = hush.load(tmp_path)
    assert (len(model.networks), model.placed, model.clients) == (1, (0,), ("south",))
    assert model.guarantees == (clustered.guarantees[1],)
    assert "north" not in (tmp_path / "model.json").read_text()


def test_a_single_changed_byte_is_found(place: FederationFolder, clustered: TrainedModel) -> None:
    good = made(place, clustered)
    delivery.opened(good, place.ca(), "north")
    step = len(good) // 150
    for at in [*range(0, len(good), step), len(good) - 1]:
        bad = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        with pytest.raises(HushError, match="delivery: "):
            delivery.opened(bad, place.ca(), "north")
    for bad in (good[:-1], good + b"x", b"", good[:40], good[:200]):
        with pytest.raises(HushError, match="delivery: "):
            delivery.opened(bad, place.ca(), "north")


def test_only_this_federation_signs_and_only_for_this_member(
    place: FederationFolder, clustered: TrainedModel, tmp_path: Path
) -> None:
    with pytest.raises(HushError, match="this member is north"):
        delivery.opened(made(place, clustered, "south"), place.ca(), "north")
    other = folders.create(tmp_path / "fed", ["north"], "127.0.0.1:8443")
    with pytest.raises(HushError, match="not signed by the CA"):
        delivery.opened(made(other, clustered), place.ca(), "north")
    # The key of the server, whose certificate the same CA signed, is not one for deliveries.
    server = (place.server / "server.key", place.server / "server.crt")
    key, certificate = keys.load_private(server[0]), server[1].read_bytes()
    with pytest.raises(HushError, match="not one for deliveries"):
        delivery.opened(delivery.packed({}, FACTS, key, certificate), place.ca(), "north")
    stranger = keys.new_key()
    with pytest.raises(HushError, match="not signed by the coordinator"):
        delivery.opened(delivery.packed({}, FACTS, stranger, place.signer()[1]), place.ca(), "north")


def test_files_with_other_names_are_refused(place: FederationFolder) -> None:
    for name in ("../kit.toml", "policy.toml", "/etc/passwd"):
        with pytest.raises(HushError, match="accepted files"):
            delivery.opened(delivery.packed({name: b""}, FACTS, *place.signer()), place.ca(), "north")


def ask(place: FederationFolder, kit: Kit, path: str, **changes: str) -> tuple[int, Any]:
    head = {**downloads.headers(kit.key(), path), **changes}
    return Downloads(place).answer(path, {name.encode(): value.encode() for name, value in head.items()})


def test_downloads_are_for_the_member_that_signs(place: FederationFolder, clustered: TrainedModel) -> None:
    north, south = (open_kit(place.path / "kits" / name) for name in ("north", "south"))
    folder = place.deliveries / "run"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "north.delivery").write_bytes(made(place, clustered))
    path = f"{downloads.PATH}/run"
    assert ask(place, north, path) == (200, folder / "north.delivery")
    assert ask(place, south, path)[0] == 404
    assert [each["run"] for each in json.loads(ask(place, north, downloads.PATH)[1])] == ["run"]
    assert json.loads(ask(place, south, downloads.PATH)[1]) == []
    for bad in ("../../kits/north/key.pem", "..", "run/../run", ""):
        assert ask(place, north, f"{downloads.PATH}/{bad}")[0] in (403, 404)
    stamp = "2020-01-01T00:00:00+00:00"
    for changes in ({downloads.TIME_HEADER: stamp}, {downloads.SIGNATURE_HEADER: "00"}, {downloads.KEY_HEADER: ""}):
        assert ask(place, north, path, **changes)[0] == 403
    borrowed = downloads.headers(south.key(), path)[downloads.SIGNATURE_HEADER]
    assert ask(place, north, path, **{downloads.SIGNATURE_HEADER: borrowed})[0] == 403
    elsewhere = downloads.headers(north.key(), downloads.PATH)
    assert ask(place, north, path, **elsewhere)[0] == 403, "a signature holds for one path"


def test_a_fetched_model_is_stored_only_after_it_was_verified(
    place: FederationFolder, clustered: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = open_kit(place.path / "kits" / "north")
    answers = {
        downloads.PATH: b'[{"run": "run", "time": 1, "size": 9}]',
        f"{downloads.PATH}/run": made(place, clustered),
    }
    monkeypatch.setattr(fetch, "_response", lambda kit, path, most=0: answers[path])
    path, _ = fetch.fetch(kit, None, tmp_path / "model", 1 << 30)
    assert fetch.load(kit, path).clients == ("north",)
    with pytest.raises(HushError, match="not empty"):
        fetch.fetch(kit, "run", tmp_path / "model", 1 << 30)
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(HushError, match=r"model\.safetensors is missing or is not the file that was signed"):
        fetch.verify(kit, path)
    answers[f"{downloads.PATH}/run"] = made(place, clustered)[:-1] + b"\x07"
    with pytest.raises(HushError, match="was signed"):
        fetch.fetch(kit, "run", tmp_path / "other", 1 << 30)
    assert not (tmp_path / "other").exists()
    answers[downloads.PATH] = b'[{"run": "../../elsewhere", "time": 1, "size": 9}]'
    with pytest.raises(HushError, match="no delivery of run"):
        fetch.fetch(kit, None, None, 1 << 30)
    monkeypatch.undo()
    with pytest.raises(HushError, match="cannot be reached"):
        fetch.available(replace(kit, address="127.0.0.1:1"))
