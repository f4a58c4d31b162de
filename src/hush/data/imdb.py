"""IMDb movie reviews as hashed bags of words: the hash depends on no data, so the features cost no privacy."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hush.data import sources
from hush.data.files import find, missing, read
from hush.types import HushError

SOURCE = sources.SOURCES["imdb"]
FEATURES = 2048
FOLDERS = ("imdb", "")
TREES = ("aclImdb", "imdb/aclImdb", "imdb", "")
SIDES = ("neg", "pos")
REVIEW = re.compile(r"(\d+)_(\d+)\.txt")


def read_reviews(root: Path, part: str) -> tuple[list[str], list[int]]:
    """Return the texts and labels (0 negative, 1 positive) of one part, from JSON lines or from the published tree."""
    name = f"{part}.jsonl.xz"
    path = find(root, FOLDERS, [name])
    if path is not None:
        return _read_lines(path)
    for tree in TREES:
        folder = root / tree / part
        if all((folder / side).is_dir() for side in SIDES):
            return _read_tree(folder)
    raise missing(root, (*FOLDERS, *TREES[:2]), [name, f"{part}/neg/*.txt and {part}/pos/*.txt"], SOURCE)


def featurise(texts: list[str]) -> npt.NDArray[np.float32]:
    """Hash each text into a unit vector of 2,048 signed word counts."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hasher = HashingVectorizer(n_features=FEATURES, norm="l2", dtype=np.float32)
    features: npt.NDArray[np.float32] = hasher.transform(text.replace("<br />", " ") for text in texts).toarray()
    return features


def _read_lines(path: Path) -> tuple[list[str], list[int]]:
    content = read(path, sources.IMDB, SOURCE)
    try:
        lines = lzma.decompress(content).decode("utf-8").split("\n")
        reviews = [json.loads(line) for line in lines if line]
        texts, labels = [review["text"] for review in reviews], [review["label"] for review in reviews]
    except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError) as error:
        raise HushError(f"data file {path}: not a complete .xz of JSON lines with text and label ({error})") from None
    if not texts or not all(isinstance(text, str) for text in texts) or not all(type(label) is int for label in labels):
        raise HushError(f"data file {path}: every line needs a text and a label 0 or 1")
    return texts, labels


def _read_tree(folder: Path) -> tuple[list[str], list[int]]:
    texts: list[str] = []
    labels: list[int] = []
    for label, side in enumerate(SIDES):
        reviews = sorted(
            (int(found[1]), path) for path in (folder / side).iterdir() if (found := REVIEW.fullmatch(path.name))
        )
        if not reviews:
            raise HushError(
                f"data directory {folder / side}: contains no review named ID_RATING.txt; download it from {SOURCE}"
            )
        for _, path in reviews:
            try:
                texts.append(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError) as error:
                raise HushError(f"data file {path}: cannot be read as UTF-8 text ({error})") from None
            labels.append(label)
    return texts, labels
