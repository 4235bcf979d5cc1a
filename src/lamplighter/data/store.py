"""One safetensors file, filled in place on disk whatever its size, hashed, and only then given its name."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamplighter.errors import LamplighterError

_TYPES = {"int64": "I64", "int32": "I32", "float32": "F32", "uint8": "U8"}
# Room for the header: it is written last, when the hash is known, and the format allows blanks behind it.
_HEADER = 1 << 16
_CHUNK = 1 << 24


@contextmanager
def create(
    path: Path, layout: Mapping[str, tuple[str, tuple[int, ...]]]
) -> Iterator[tuple[dict[str, NDArray[Any]], MutableMapping[str, str]]]:
    """Arrays to fill and metadata to add to; the file appears at `path` when the block ends without an error.

    Args:
        path: where the file will be.
        layout: dtype and shape of each array.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    # Widest first, so that every array is aligned.
    names = sorted(layout, key=lambda name: (-np.dtype(layout[name][0]).itemsize, name))
    header: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    metadata: dict[str, str] = {}
    end = 0
    try:
        with part.open("wb") as file:
            for name in names:
                dtype, shape = layout[name]
                begin, end = end, end + np.dtype(dtype).itemsize * prod(shape)
                header[name] = {"dtype": _TYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
            file.truncate(8 + _HEADER + end)
        for name in names:
            dtype, shape = layout[name]
            offset = 8 + _HEADER + header[name]["data_offsets"][0]
            empty = prod(shape) == 0
            arrays[name] = np.empty(shape, dtype) if empty else np.memmap(part, dtype, "r+", offset, shape)
        yield arrays, metadata
        for array in arrays.values():
            if isinstance(array, np.memmap):
                array.flush()
        _finish(part, header, metadata)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _finish(part: Path, header: dict[str, Any], metadata: Mapping[str, str]) -> None:
    header["__metadata__"] = {**metadata, "sha256": _hash(part)}
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= _HEADER
    with part.open("r+b") as file:
        file.write(_HEADER.to_bytes(8, "little") + text.ljust(_HEADER))
        file.flush()
        os.fsync(file.fileno())


def _hash(path: Path) -> str:
    """SHA-256 of everything behind the header."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(8 + _HEADER)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def verify(path: Path) -> None:
    """Read the whole file and compare it with the hash it carries."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    hint = "delete it and prepare the data again"
    try:
        with safe_open(path, "numpy") as file:
            expected = (file.metadata() or {}).get("sha256")
    except SafetensorError as error:
        raise LamplighterError(f"{path} is not a whole safetensors file: {error}", hint) from error
    if expected != _hash(path):
        raise LamplighterError(f"{path} does not hold what was written to it: its hash differs", hint)


def recorded_hash(path: Path) -> str | None:
    """The hash that a file carries, without reading what it is of."""
    from safetensors import safe_open  # noqa: PLC0415

    with safe_open(path, "numpy") as file:
        return (file.metadata() or {}).get("sha256")
