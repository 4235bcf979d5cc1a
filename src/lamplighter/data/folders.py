"""Images in one folder per class, as ImageNet is unpacked."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lamplighter.data.images import Split
from lamplighter.errors import LamplighterError

_SUFFIXES = frozenset({".jpeg", ".jpg", ".png", ".webp"})
_ALIASES = {"validation": ("validation", "val", "valid", "test")}


def find(folder: Path, split: str) -> Path | None:
    """The folder of a split below `folder`, by any of its usual names."""
    candidates = (folder / name for name in _ALIASES.get(split, (split,)))
    return next((path for path in candidates if path.is_dir()), None)


def read_images(folder: Path, classes: int) -> Split:
    """Every image below `folder`; the label is the place of its class's folder among all of them by name.

    All `classes` folders must be there (they may be empty), or labels would shift.
    """
    names = sorted(path for path in folder.iterdir() if path.is_dir())
    if len(names) != classes:
        raise LamplighterError(
            f"{folder} has {len(names)} class folders, expected {classes}",
            "the label of a class is its folder's place among all, so keep the folders of all classes, empty or not",
        )
    images: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        of_class = sorted(path for path in name.iterdir() if path.suffix.lower() in _SUFFIXES)
        images += of_class
        labels += [label] * len(of_class)

    def encoded() -> Iterator[bytes]:
        for path in images:
            yield path.read_bytes()

    return Split(np.asarray(labels, np.int64), encoded)
