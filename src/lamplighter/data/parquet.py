"""Parquet files in the schema of the Hugging Face hub: images as struct{bytes, path}, text one line per row."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lamplighter.data.images import Split
from lamplighter.errors import LamplighterError


def find(folder: Path, split: str, config: str) -> list[Path]:
    """The parquet files of a split in `folder`, or in its subfolder `config` or `data`, in the order of their names.

    The hub serves both `train-00000-of-00002.parquet` and `train/0000.parquet`.
    """
    for place in (folder / config, folder / "data", folder):
        files = sorted([*place.glob(f"{split}-*.parquet"), *place.glob(f"{split}.parquet")])
        files = files or sorted((place / split).glob("*.parquet"))
        if files:
            return files
    return []


def _check_columns(path: Path, found: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise LamplighterError(f"{path} has no column {' or '.join(missing)}, only {', '.join(found)}")


def read_images(files: Sequence[Path], image: str, label: str) -> Split:
    """Labels and encoded images of the files, one after another."""
    import pyarrow.compute as pc  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    labels = []
    for path in files:
        with pq.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow.names, (image, label))
            labels.append(file.read(columns=[label]).column(label).to_numpy())

    def encoded() -> Iterator[bytes]:
        for path in files:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=1024, columns=[image]):
                    blobs = pc.struct_field(batch.column(image), "bytes").to_pylist()
                    if None in blobs:
                        raise LamplighterError(f"{path} has rows without the bytes of their image")
                    yield from blobs

    return Split(np.concatenate(labels).astype(np.int64), encoded)


def read_lines(files: Sequence[Path], column: str) -> list[str]:
    """The lines of the files, one after another."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    lines: list[str] = []
    for path in files:
        with pq.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow.names, (column,))
            lines += [line.rstrip("\n") for line in file.read(columns=[column]).column(column).to_pylist()]
    return lines
