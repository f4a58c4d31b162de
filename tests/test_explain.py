from __future__ import annotations

import pytest

from hush.config_keys import config_keys
from hush.explain import everything, explain
from hush.names import catalogue
from hush.recipes import SLOTS, SUMMARIES
from hush.types import HushError
from tests.support.paths import ROOT


def test_every_recipe_option_key_name_and_term_is_explained() -> None:
    listed = catalogue()
    words = [*SUMMARIES, *(rule for rules in SLOTS.values() for rule in rules), *(key.name for key in config_keys())]
    words += [name for kind, names in listed.items() if kind != "slots" for name in names]
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words += [line.split("|")[1].strip() for line in glossary.splitlines() if line.startswith("| ")][1:]
    assert len(words) > 120
    for word in words:
        assert all(each.text for each in explain(word)), word


def test_every_name_has_a_hint() -> None:
    for kind, names in catalogue().items():
        hints = [words for rules in names.values() for words in rules.values()] if kind == "slots" else names.values()
        assert all(hints), kind


def test_a_word_may_have_several_meanings_and_forms() -> None:
    assert {each.kind for each in explain("recipe")} == {"config key", "term"}
    (clip,) = explain("clip")
    assert clip.word == "privacy.clip" and ("default", "1.0") in clip.facts
    assert explain("Member")[0].word == "client, member"
    (found,) = explain("robust-hdp")
    assert dict(found.facts)["weight"].startswith("estimated-noise: By the inverse of the noise energy")


def test_an_unknown_word_is_one_line_with_what_is_close() -> None:
    with pytest.raises(HushError, match=r"did you mean .*robust-hdp") as error:
        explain("robust-hpd")
    assert "\n" not in str(error.value)
    assert len({(each.word, each.kind, each.facts) for each in everything()}) == len(everything())
