"""`prepare` turns a dataset as it is found into one file of tensors, `load` maps that file into memory."""

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from lamplighter.data import folders, hub, parquet, store, text
from lamplighter.data.catalog import DATASETS, ImageSource, TextSource
from lamplighter.data.dataset import Corpus, Dataset
from lamplighter.data.images import Pixels, Split, centre, decode, exactly, square
from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.naming import closest

if TYPE_CHECKING:
    from PIL.Image import Image

_FORMAT = "1"
_IMAGENET_CLASSES = 1000
# Training photographs are kept at this many pixels a side; tested ones are resized and cropped as the paper does.
_STORED, _RESIZED, _CROPPED = 256, 256, 224
Progress = Callable[[str, int, int], None]


def prepare(
    name: str, source: Path | str | None, out: Path | str, *, force: bool = False, progress: Progress | None = None
) -> Path:
    """Turn a dataset into `out`/NAME.safetensors, unless that is there already and whole.

    Images become uint8 pixels, (images, height, width, 3), and int64 labels; text becomes int32 word numbers and the
    list of words. The file's metadata says how many there are and carries the SHA-256 of its contents.

    Args:
        name: one of the catalog.
        source: a folder that holds the dataset (or a folder of its name): parquet files as the hub serves them,
            class folders of images, text files, or a tar archive of text files. None fetches it from the hub.
        out: the folder for the file.
        force: do it again even if the file is there.
        progress: called with the split, the images done, and their number.

    Returns:
        The file.
    """
    description = _describe(name)
    path = Path(out) / f"{name}.safetensors"
    if path.exists() and not force:
        store.verify(path)
        return path
    place = None if source is None else _place(name, description, Path(source))
    if isinstance(description, TextSource):
        _prepare_text(name, description, place, path)
    else:
        _prepare_images(name, description, place, path, progress)
    store.verify(path)
    return path


@dataclass(frozen=True)
class Prepared:
    """A prepared dataset, as the header of its file describes it.

    Args:
        path: the file.
        counts: images or words of each split, by the split's name in the catalog.
        complete: whether that is all there should be.
        sha256: of what was written; only `verify` compares it with what is there.
    """

    path: Path
    counts: dict[str, int]
    complete: bool
    sha256: str


def find(name: str, folder: Path | str) -> Prepared | None:
    """What `prepare` wrote to `folder`, or None if nothing is there. Reads the header alone, so it takes no time."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    description = _describe(name)
    path = Path(folder) / f"{name}.safetensors"
    if not path.is_file():
        return None
    keys = list(description.counts) if isinstance(description, TextSource) else ["train.labels", "test.labels"]
    again = f"prepare it again: lamp data prepare {name} --force"
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            if (metadata.get("name"), metadata.get("format")) != (name, _FORMAT):
                raise LamplighterError(f"{path} was not written by this version for {name}", again)
            lengths = [file.get_slice(key).get_shape()[0] for key in keys]
    except SafetensorError as error:
        raise LamplighterError(f"{path} is not a whole safetensors file: {error}", again) from error
    counts = dict(zip(description.counts, lengths, strict=True))
    return Prepared(path, counts, counts == description.counts, metadata.get("sha256", ""))


def verify(name: str, folder: Path | str) -> Prepared:
    """Read all that `prepare` wrote to `folder`, and refuse it if it is not there or has changed since."""
    found = _expect(name, folder)
    store.verify(found.path)
    return found


def load(name: str, folder: Path | str) -> Dataset | Corpus:
    """The dataset that `prepare` wrote to `folder`, mapped into memory."""
    from safetensors import safe_open  # noqa: PLC0415

    description = _describe(name)
    with safe_open(_expect(name, folder).path, "pt") as file:
        tensors: dict[str, Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    if isinstance(description, TextSource):
        words = bytes(tensors.pop("words").numpy()).decode().split("\n")
        return Corpus(name, tensors["train"], tensors["valid"], tensors["test"], tuple(words))
    return Dataset(
        name=name,
        train_images=tensors["train.images"],
        train_labels=tensors["train.labels"],
        test_images=tensors["test.images"],
        test_labels=tensors["test.labels"],
        mean=description.mean,
        std=description.std,
        classes=description.classes,
        train_aspects=tensors.get("train.aspects"),
    )


def _expect(name: str, folder: Path | str) -> Prepared:
    found = find(name, folder)
    if found is None:
        path = Path(folder) / f"{name}.safetensors"
        raise LamplighterError(f"{name} has not been prepared: there is no {path}", hub.ways(name, _describe(name)))
    return found


def _describe(name: str) -> ImageSource | TextSource:
    if name not in DATASETS:
        raise LamplighterError(f"there is no dataset {name}", closest(name, DATASETS))
    return DATASETS[name]


def _place(name: str, description: ImageSource | TextSource, source: Path) -> Path:
    """The folder or archive itself, or the folder of the dataset's name in it."""
    if not source.exists():
        raise LamplighterError(f"{source}, where {name} should be, does not exist", hub.ways(name, description))
    return source / name if (source / name).is_dir() else source


def _report(name: str, found: dict[str, int], complete: dict[str, int]) -> None:
    differing = [
        f"{split} {count:,}, not {complete[split]:,}" for split, count in found.items() if count != complete[split]
    ]
    if differing:
        message = f"{name} is not the complete dataset: {'; '.join(differing)}"
        warnings.warn(message, LamplighterWarning, stacklevel=4)


def _prepare_images(
    name: str, description: ImageSource, place: Path | None, path: Path, progress: Progress | None
) -> None:
    found = {
        split: _grouped(name, description, _images(name, description, split, place)) for split in description.counts
    }
    _report(name, {split: len(content.labels) for split, content in found.items()}, description.counts)
    splits = dict(zip(("train", "test"), found.values(), strict=True))
    sizes = {"train": description.size or _STORED, "test": description.size or _CROPPED}
    layout: dict[str, tuple[str, tuple[int, ...]]] = {}
    for target, split in splits.items():
        count = len(split.labels)
        layout[f"{target}.images"] = ("uint8", (count, sizes[target], sizes[target], 3))
        layout[f"{target}.labels"] = ("int64", (count,))
    if description.size is None:
        layout["train.aspects"] = ("float32", (len(splits["train"].labels),))
    with store.create(path, layout) as (arrays, metadata):
        for target, split in splits.items():
            arrays[f"{target}.labels"][:] = split.labels
            decode(
                split,
                _conversion(description, target),
                arrays[f"{target}.images"],
                aspects=arrays.get(f"{target}.aspects"),
                done=_bound(progress, target, len(split.labels)),
            )
            per_class = np.bincount(split.labels, minlength=description.classes)
            metadata[f"{target}.per_class"] = json.dumps(per_class.tolist())
        metadata.update(name=name, format=_FORMAT)


def _bound(progress: Progress | None, split: str, total: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda done: progress(split, done, total)


def _conversion(description: ImageSource, target: str) -> Callable[["Image"], Pixels]:
    if description.size is not None:
        return partial(exactly, size=description.size)
    return partial(square, size=_STORED) if target == "train" else partial(centre, size=_CROPPED, side=_RESIZED)


def _images(name: str, description: ImageSource, split: str, place: Path | None) -> Split:
    if place is None:
        return hub.fetch_images(name, description, split)
    files = parquet.find(place, split, description.config)
    if files:
        return parquet.read_images(files, description.image, description.label)
    folder = folders.find(place, split)
    if folder is None:
        wanted = f"{split}-*.parquet or a folder {split} of class folders"
        raise LamplighterError(f"{place} has no {split} split of {name}: no {wanted}", hub.ways(name, description))
    return folders.read_images(folder, _IMAGENET_CLASSES if description.groups else description.classes)


def _grouped(name: str, description: ImageSource, split: Split) -> Split:
    """The split with labels 0 to classes - 1: checked, or where classes are groups of labels, only those in a group."""
    if description.groups is None:
        wrong = (split.labels < 0) | (split.labels >= description.classes)
        if wrong.any():
            row = int(wrong.argmax())
            expected = f"expected 0 to {description.classes - 1}"
            raise LamplighterError(f"{name}: image {row} has label {split.labels[row]}, {expected}")
        return split
    group = np.full(_IMAGENET_CLASSES, -1, np.int64)
    for number, (first, last) in enumerate(description.groups.values()):
        group[first : last + 1] = number
    labels = group[split.labels]
    chosen = labels >= 0
    return Split(labels[chosen], lambda: (blob for blob, use in zip(split.encoded(), chosen, strict=True) if use))


def _prepare_text(name: str, description: TextSource, place: Path | None, path: Path) -> None:
    if place is None:
        lines = {split: hub.fetch_lines(name, description, split) for split in description.counts}
    else:
        lines = text.read(place, (name, *description.aliases), description.config, description.column)
    missing = [split for split in description.counts if split not in lines]
    if missing:
        where = f"{name} at {place} has no {' and no '.join(missing)} split"
        raise LamplighterError(f"{where}; found {', '.join(lines) or 'none'}", hub.ways(name, description))
    content = {split: text.tokens(lines[split]) for split in description.counts}
    _report(name, {split: len(found) for split, found in content.items()}, description.counts)
    numbers, words = text.encode(name, content)
    joined = np.frombuffer("\n".join(words).encode(), np.uint8)
    layout: dict[str, tuple[str, tuple[int, ...]]] = {split: ("int32", found.shape) for split, found in numbers.items()}
    with store.create(path, layout | {"words": ("uint8", joined.shape)}) as (arrays, metadata):
        for split, found in numbers.items():
            arrays[split][:] = found
        arrays["words"][:] = joined
        metadata.update(name=name, format=_FORMAT, vocabulary=str(len(words)))
