"""Fetching from the Hugging Face hub, the only place that imports `datasets`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lamplighter.data.catalog import ImageSource, TextSource
from lamplighter.data.images import Split
from lamplighter.errors import LamplighterError


class Rows(Protocol):
    """What is used of a dataset of the `datasets` library."""

    def __iter__(self) -> Iterator[dict[str, Any]]: ...

    def __getitem__(self, column: str) -> Any: ...  # noqa: ANN401

    def cast_column(self, column: str, feature: object) -> "Rows": ...


def ways(name: str, source: ImageSource | TextSource) -> str:
    """Both ways to get a dataset, as a hint."""
    return (
        f"fetch it from the hub (repository {source.hub}) with `lamp data prepare {name}`, which needs a connection "
        f'and `pip install "lamplighter[train]"`; or copy it here and run `lamp data prepare {name} --source FOLDER`'
    )


def _open(name: str, source: ImageSource | TextSource, split: str, revision: str | None = None) -> Rows:
    try:
        import datasets  # noqa: PLC0415
    except ImportError as error:
        raise LamplighterError(f"{name} is not here, and `datasets` is not installed", ways(name, source)) from error
    try:
        rows: Rows = datasets.load_dataset(source.hub, source.config, split=split, revision=revision)
    except Exception as error:  # whatever the many layers below raise, the user can do the same about it
        message = f"{name} could not be fetched from the hub: {type(error).__name__}: {error}"
        raise LamplighterError(message, ways(name, source)) from error
    return rows


def fetch_images(name: str, source: ImageSource, split: str) -> Split:
    """Labels and encoded images of a split."""
    opened = _open(name, source, split)
    import datasets  # noqa: PLC0415

    rows = opened.cast_column(source.image, datasets.Image(decode=False))

    def encoded() -> Iterator[bytes]:
        for row in rows:
            image = row[source.image]
            yield image["bytes"] if image["bytes"] is not None else Path(image["path"]).read_bytes()

    return Split(np.asarray(rows[source.label], np.int64), encoded)


def fetch_lines(name: str, source: TextSource, split: str) -> list[str]:
    """The lines of a split."""
    rows = _open(name, source, "validation" if split == "valid" else split, source.revision)
    return [line.rstrip("\n") for line in rows[source.column]]
