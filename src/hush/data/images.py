"""Images in IDX files, gzipped or not: MNIST, Fashion-MNIST and the 47-class EMNIST sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hush.data import sources
from hush.data.files import find, missing, read
from hush.data.idx import parse_idx
from hush.types import HushError

SIDE = 28

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class IdxImages:
    """One dataset of square grey images in IDX files, and the public constants that normalise it."""

    title: str
    folders: tuple[str, ...]
    stems: Mapping[str, str]
    digests: Mapping[str, str]
    source: str
    classes: int
    mean: float
    std: float
    transposed: bool = False

    def names(self, part: str, kind: str) -> tuple[str, str, str]:
        """The file names it may have, the published one first."""
        stem = self.stems[part]
        return f"{stem}-{kind}-ubyte.gz", f"{stem}-{kind}-ubyte", f"{stem}-{kind.replace('-', '.')}-ubyte"


MNIST = IdxImages(
    title="mnist",
    folders=("mnist", "MNIST/raw", "MNIST", ""),
    stems={"train": "train", "test": "t10k"},
    digests=sources.MNIST,
    source=sources.SOURCES["mnist"],
    classes=10,
    mean=0.1307,
    std=0.3081,
)
# Robust-HDP normalises Fashion-MNIST with the constants of MNIST; its tables are only comparable with these.
FASHION_MNIST = IdxImages(
    title="fashion-mnist",
    folders=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", ""),
    stems=MNIST.stems,
    digests=sources.FASHION_MNIST,
    source=sources.SOURCES["fashion-mnist"],
    classes=10,
    mean=0.1307,
    std=0.3081,
)
EMNIST_FOLDERS = ("emnist", "EMNIST/raw", "EMNIST", "gzip", "emnist/gzip", "")
# The full set comes first, because accuracies on the subset are not comparable with published ones.
EMNIST47 = (
    IdxImages(
        title="emnist-balanced",
        folders=EMNIST_FOLDERS,
        stems={"train": "emnist-balanced-train", "test": "emnist-balanced-test"},
        digests={},
        source=sources.SOURCES["emnist47"],
        classes=47,
        mean=0.1751,
        std=0.3332,
        transposed=True,
    ),
    IdxImages(
        title="emnist47-balanced-subset",
        folders=EMNIST_FOLDERS,
        stems={"train": "emnist47-balanced-subset-train", "test": "emnist47-balanced-subset-test"},
        digests=sources.EMNIST47_SUBSET,
        source=sources.SOURCES["emnist47"],
        classes=47,
        mean=0.1751,
        std=0.3332,
        transposed=True,
    ),
)


def present(spec: IdxImages, root: Path) -> bool:
    """Return whether any image file of the dataset is below the root."""
    return any(find(root, spec.folders, spec.names(part, "images-idx3")) for part in spec.stems)


def read_images(spec: IdxImages, root: Path, part: str) -> tuple[Pixels, Pixels]:
    """Return the upright images (n, 1, 28, 28) and the labels (n,) of one part, as bytes."""
    images_path = _locate(spec, root, spec.names(part, "images-idx3"))
    labels_path = _locate(spec, root, spec.names(part, "labels-idx1"))
    images = parse_idx(_content(spec, images_path), images_path, 3)
    labels = parse_idx(_content(spec, labels_path), labels_path, 1)
    if images.shape[1:] != (SIDE, SIDE) or not len(images):
        raise HushError(
            f"data file {images_path}: images of shape {images.shape}; accepted: (n, {SIDE}, {SIDE}), n >= 1"
        )
    if len(images) != len(labels):
        raise HushError(
            f"data file {labels_path}: {len(labels)} labels for the {len(images)} images of {images_path.name}"
        )
    upright = images.transpose(0, 2, 1) if spec.transposed else images
    return upright[:, None], labels


def normalise(pixels: Pixels, mean: float, std: float) -> npt.NDArray[np.float32]:
    """Scale bytes to [0, 1] and standardise, through a table of the 256 possible values."""
    table = ((np.arange(256) / 255.0 - mean) / std).astype(np.float32)
    return table[np.ascontiguousarray(pixels)]


def _locate(spec: IdxImages, root: Path, names: tuple[str, ...]) -> Path:
    path = find(root, spec.folders, names)
    if path is None:
        raise missing(root, spec.folders, names[:2], spec.source)
    return path


def _content(spec: IdxImages, path: Path) -> bytes:
    """The dotted names some mirrors use hold the same bytes, so they have the same digests."""
    digests = {**spec.digests, **{name.replace("-idx", ".idx"): digest for name, digest in spec.digests.items()}}
    return read(path, digests, spec.source)
