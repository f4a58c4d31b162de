"""The measured table of LoRA: the page shows the file, and what it says holds in the file."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np

from scripts.lora import ARMS, EPSILONS, HATED, INDEX, LENGTH, LIKED, RESULTS, SEEDS, WORDS, chosen, sentences, table

PAGE = Path(__file__).parents[2] / "docs" / "fine-tuning.md"


def test_the_page_shows_what_was_measured() -> None:
    assert table(json.loads(RESULTS.read_text())) in PAGE.read_text()


def test_lora_is_above_the_head_alone_and_above_all_parameters() -> None:
    content = json.loads(RESULTS.read_text())
    for epsilon in EPSILONS:
        found = {arm: chosen(content, arm, epsilon) for arm in ARMS}
        assert all(sorted(each["seed"] for each in runs) == list(SEEDS) for runs in found.values())
        assert all(each["spent"] <= epsilon for runs in found.values() for each in runs)
        mean = {arm: statistics.fmean(each["accuracy"] for each in runs) for arm, runs in found.items()}
        assert mean["LoRA"] > max(mean["head alone"], mean["all parameters"])


def test_public_sentences_say_nothing_of_labels() -> None:
    rows, labels = sentences(2000, 0, public=True)
    assert rows.shape == (2000, LENGTH) and set(labels) == {0, 1}
    liked = np.isin(rows, [INDEX[word] for word in LIKED]).any(1)
    hated = np.isin(rows, [INDEX[word] for word in HATED]).any(1)
    assert (liked != hated).all()
    assert abs(np.corrcoef(liked, labels)[0, 1]) < 0.1
    private, truth = sentences(2000, 0, public=False)
    assert (private == INDEX["saw"]).any(1).all() and 0.4 < truth.mean() < 0.6
    assert private.max() < len(WORDS)
