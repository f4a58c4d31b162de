"""IMDb reviews: both layouts give the same features, and broken files one line."""

from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from hush.data import imdb, load, sources
from hush.types import HushError


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def pack(path: Path, content: bytes, patch: pytest.MonkeyPatch) -> None:
    """Write a file and make its digest the known one."""
    put(path, content)
    patch.setitem(sources.IMDB, path.name, hashlib.sha256(content).hexdigest())


def test_reviews_from_lines_and_from_the_tree_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"neg": ["dull<br />film", "a\x85b bad", "worse " * 30], "pos": ["fine film", "great\nplot", "good good"]}
    lines = []
    for label, (side, wanted) in enumerate(texts.items()):
        for number, text in enumerate(wanted):
            put(tmp_path / "tree" / "aclImdb" / "train" / side / f"{number * 5}_{1 + 8 * label}.txt", text.encode())
            lines.append(json.dumps({"id": number * 5, "label": label, "text": text}, ensure_ascii=False))
    packed = lzma.compress(("\n".join(lines) + "\n").encode())
    pack(tmp_path / "lines" / "imdb" / "train.jsonl.xz", packed, monkeypatch)
    tree, listed = (load("imdb", root=str(tmp_path / place)) for place in ("tree", "lines"))
    assert tree.x.shape == (6, 2048) and tree.classes == 2
    np.testing.assert_array_equal(tree.x, listed.x)
    np.testing.assert_array_equal(tree.y, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(listed.y, tree.y)
    np.testing.assert_allclose(np.linalg.norm(tree.x, axis=1), 1.0, rtol=1e-6)
    # A row depends on its own text only: nothing is fitted.
    np.testing.assert_array_equal(imdb.featurise(["fine film"])[0], tree.x[3])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lzma.compress(b'{"text": "a", "label": 0}\n')[:-9], r"not a complete \.xz"),
        (b"zzz", r"not a complete \.xz"),
        (lzma.compress(b'{"text": "a"}\n'), "label"),
        (lzma.compress(b"[1]\n"), "not a complete"),
        (lzma.compress(b'{"text": 3, "label": 0}\n'), "every line needs"),
        (lzma.compress(b'{"text": "a", "label": "x"}\n'), "every line needs"),
        (lzma.compress(b""), "every line needs"),
        (lzma.compress(b'{"text": "a", "label": 2}\n'), "label 2 of row 0"),
    ],
)
def test_broken_reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: str) -> None:
    pack(tmp_path / "train.jsonl.xz", content, monkeypatch)
    with pytest.raises(HushError, match=words) as error:
        load("imdb", root=str(tmp_path))
    assert "\n" not in str(error.value)


def test_broken_tree(tmp_path: Path) -> None:
    put(tmp_path / "aclImdb" / "train" / "neg" / "0_1.txt", b"\xff\xfe\xff")
    put(tmp_path / "aclImdb" / "train" / "pos" / "readme", b"x")
    with pytest.raises(HushError, match=r"0_1\.txt: cannot be read as UTF-8"):
        load("imdb", root=str(tmp_path))
    put(tmp_path / "aclImdb" / "train" / "neg" / "0_1.txt", b"x")
    with pytest.raises(HushError, match=r"pos: contains no review"):
        load("imdb", root=str(tmp_path))
