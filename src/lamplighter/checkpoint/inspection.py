"""What is in a checkpoint: every tensor with its zeros and magnitudes, and files that are damaged."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.discovery import Region, find_regions
from lamplighter.checkpoint.files import find_files
from lamplighter.checkpoint.header import read_header
from lamplighter.checkpoint.packed_format import KEY
from lamplighter.checkpoint.progress import Tell, silent
from lamplighter.checkpoint.stream import Stream
from lamplighter.checkpoint.threads import thread_count
from lamplighter.checkpoint.torch_files import load_torch
from lamplighter.errors import LamplighterError
from lamplighter.formats import FORMATS
from lamplighter.naming import natural_key
from lamplighter.spectrum import Spectrum


@dataclass(frozen=True, slots=True)
class TensorReport:
    """One tensor. Magnitudes are of the finite entries that are not zero, of 32-bit ones to about two digits.

    Args:
        name: its name.
        file: the file it is in.
        shape: its shape.
        dtype: its dtype, as safetensors files call it.
        size: how many entries it has.
        layers: how many layers it holds that count by default; more than one for a stack of experts.
        zeros: how many entries are zero; None where that is not looked at.
        nonfinite: how many are NaN or infinite.
        smallest: the smallest magnitude.
        median: the one in the middle.
        largest: the largest.
    """

    name: str
    file: str
    shape: tuple[int, ...]
    dtype: str
    size: int
    layers: int
    zeros: int | None = None
    nonfinite: int | None = None
    smallest: float | None = None
    median: float | None = None
    largest: float | None = None


@dataclass(frozen=True)
class Inspection:
    """A checkpoint's tensors in natural order, its files, and why its layers cannot be pruned if they cannot.

    Those of a packed checkpoint are bitmasks and values, none of them a layer.
    """

    source: str
    files: dict[str, int]
    carried: tuple[str, ...]
    left_out: tuple[str, ...]
    tensors: tuple[TensorReport, ...]
    obstacle: str | None
    dropped: tuple[str, ...] = ()
    packed: bool = False

    def as_data(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return asdict(self)


def damaged(src: str | os.PathLike[str]) -> list[LamplighterError]:
    """What is wrong with the files of a checkpoint, one by one, so that one does not hide the others."""
    files, found = find_files(Path(src)), []
    for file in files.shards:
        try:
            path = files.root / file
            (read_header if file.endswith(".safetensors") else load_torch)(path)
        except LamplighterError as error:
            found.append(error)
    return found


def inspect_checkpoint(src: str | os.PathLike[str], *, threads: int | None = None, tell: Tell = silent) -> Inspection:
    """Read a checkpoint once, and say what is in it."""
    checkpoint = Checkpoint(src)
    counts: dict[str, int] = {}
    obstacle = None
    packed = any(KEY in shard.metadata for shard in checkpoint.shards)
    try:
        _, regions = ([], {}) if packed else find_regions(checkpoint)
        for region in regions.values():
            for tensor in region.tensors:
                counts[tensor] = counts.get(tensor, 0) + 1
    except LamplighterError as error:
        obstacle = error.message
    whole = {
        name: Region((name,), entry.torch_dtype, entry.shape)
        for name, entry in checkpoint.entries.items()
        if entry.torch_dtype in FORMATS
    }
    spectra = Stream(checkpoint, whole, thread_count(threads), tell=tell).count(finite=False)
    tensors = tuple(
        _tensor(checkpoint, name, counts.get(name, 0), spectra.get(name))
        for name in sorted(checkpoint.entries, key=natural_key)
    )
    return Inspection(
        str(checkpoint.path),
        {shard.file: shard.nbytes for shard in checkpoint.shards},
        tuple(map(str, checkpoint.others)),
        tuple(map(str, checkpoint.files.left_out)),
        tensors,
        obstacle,
        tuple(checkpoint.dropped),
        packed,
    )


def _tensor(checkpoint: Checkpoint, name: str, layers: int, spectrum: Spectrum | None) -> TensorReport:
    entry = checkpoint.entries[name]
    size = int(np.prod([1, *entry.shape], dtype=object))
    base = (name, entry.file, entry.shape, entry.dtype, size, layers)
    if spectrum is None:
        return TensorReport(*base)
    finite = int(np.searchsorted(spectrum.keys, spectrum.form.infinity >> spectrum.shift))
    if finite == 0:
        return TensorReport(*base, spectrum.zeros, spectrum.nonfinite)
    middles = (spectrum.low[:finite] + spectrum.high[:finite]) / 2
    reached = np.cumsum(spectrum.counts[:finite], dtype=np.int64)
    median = middles[int(np.searchsorted(reached, (int(reached[-1]) + 1) // 2))]
    values = (float(middles[0]), float(median), float(middles[-1]))
    return TensorReport(*base, spectrum.zeros, spectrum.nonfinite, *values)
