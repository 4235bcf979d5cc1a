"""A checkpoint as a source of spectra: read chunk by chunk, in the order of the files, in bounded memory."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.discovery import Region
from lamplighter.checkpoint.progress import Meter, Tell, silent
from lamplighter.checkpoint.shelf import Shelf
from lamplighter.checkpoint.threads import Workers
from lamplighter.kernels import Run, cpu
from lamplighter.reading import refuse_nonfinite
from lamplighter.spectrum import Spectrum, add

T = TypeVar("T")

CHUNK = 1 << 22  # bytes that are read at once: fewer make more spectra to add
_TOGETHER = 16  # so many spectra of chunks wait to be added


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of a layer, from one entry to before another."""

    layer: str
    start: int
    stop: int


class Buffers(threading.local):
    """Each thread's buffer, used again for every chunk."""

    def __init__(self) -> None:
        self.room = torch.empty(0, dtype=torch.uint8, device="cpu")

    def of(self, nbytes: int) -> Tensor:
        """The first bytes of the buffer, whatever is in them."""
        if self.room.numel() < nbytes:
            with torch.inference_mode(False):
                self.room = torch.empty(max(nbytes, CHUNK), dtype=torch.uint8, device="cpu")
        return self.room[:nbytes]


class Stream:
    """The layers of a checkpoint, as a source of spectra.

    Args:
        checkpoint: where they are.
        regions: where in it, by layer name in layer order.
        threads: how many read.
        chunk: how many bytes at once.
        tell: is told how much has been read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        regions: Mapping[str, Region],
        threads: int,
        chunk: int = CHUNK,
        tell: Tell = silent,
    ) -> None:
        self.checkpoint = checkpoint
        self.regions = dict(regions)
        self.threads = threads
        self.chunk = chunk
        self._meter = Meter("reading", tell)
        self._buffers = Buffers()

    def count(self, *, finite: bool = True) -> Mapping[str, Spectrum]:
        """The spectrum of every layer; an error for what is not finite, unless that may be."""
        shelf = Shelf(self.regions)
        broken: dict[str, int] = {}

        def done(layer: str, parts: list[Spectrum]) -> None:
            spectrum = add(parts)
            if finite and spectrum.nonfinite:
                broken[layer] = spectrum.nonfinite
            shelf.put(layer, spectrum)

        self._read(dict.fromkeys(self.regions, cpu.count), done, add)
        refuse_nonfinite({layer: broken[layer] for layer in self.regions if layer in broken})
        return shelf

    def window(self, codes: Mapping[str, tuple[int, int]], *, energy: bool) -> dict[str, tuple[Spectrum, float]]:
        """Exact spectra between two codes, and about the energy above."""
        found: dict[str, tuple[Spectrum, float]] = {}

        def together(parts: list[tuple[Spectrum, float]]) -> tuple[Spectrum, float]:
            return add([spectrum for spectrum, _ in parts]), math.fsum(above for _, above in parts)

        def done(layer: str, parts: list[tuple[Spectrum, float]]) -> None:
            found[layer] = together(parts)

        def reader(low: int, high: int) -> Callable[[Run], tuple[Spectrum, float]]:
            return lambda run: cpu.window(run, low, high, energy=energy)

        self._read({layer: reader(*between) for layer, between in codes.items()}, done, together)
        return {layer: found[layer] for layer in codes}

    def energy(self, codes: Mapping[str, int]) -> dict[str, int]:
        """The exact energy of the entries from a code up, in units squared."""
        found: dict[str, int] = {}

        def together(parts: list[int]) -> int:
            return sum(parts)

        def done(layer: str, parts: list[int]) -> None:
            found[layer] = together(parts)

        def reader(code: int) -> Callable[[Run], int]:
            return lambda run: cpu.energy(run, code)

        self._read({layer: reader(code) for layer, code in codes.items()}, done, together)
        return {layer: found[layer] for layer in codes}

    def _read(
        self,
        works: Mapping[str, Callable[[Run], T]],
        done: Callable[[str, list[T]], None],
        together: Callable[[list[T]], T],
    ) -> None:
        """Read some layers; what their chunks give is gathered, and handed over when a layer is complete."""
        self._meter.expect(sum(self.regions[layer].size * self._width(layer) for layer in works))
        waiting: dict[str, list[T]] = {layer: [] for layer in works}
        missing = {layer: self._chunk_count(layer) for layer in works}
        lock = threading.Lock()

        def work(chunk: Chunk) -> None:
            part = works[chunk.layer](self._load(chunk))
            with lock:
                parts = waiting[chunk.layer]
                parts.append(part)
                missing[chunk.layer] -= 1
                if not missing[chunk.layer]:
                    done(chunk.layer, waiting.pop(chunk.layer))
                elif len(parts) == _TOGETHER:
                    parts[:] = [together(parts)]
            self._meter.step((chunk.stop - chunk.start) * self._width(chunk.layer))

        Workers(self.threads, work).run(self._chunks(works))

    def _load(self, chunk: Chunk) -> Run:
        """The entries of a chunk, in this thread's buffer."""
        region, width = self.regions[chunk.layer], self._width(chunk.layer)
        begin, end = (width * (region.start + place) for place in (chunk.start, chunk.stop))
        room = self._buffers.of(end - begin)
        self.checkpoint.read_bytes(region.tensors[0], begin, end, room.numpy().data)
        return Run(room.view(region.dtype))

    def _width(self, layer: str) -> int:
        return self.regions[layer].dtype.itemsize

    def _step(self, layer: str) -> int:
        return max(self.chunk // self._width(layer), 1)

    def _chunk_count(self, layer: str) -> int:
        return max(-(-self.regions[layer].size // self._step(layer)), 1)

    def _chunks(self, layers: Mapping[str, object]) -> Iterator[Chunk]:
        """All chunks, in the order in which they lie in the files."""
        for layer in in_file_order(self.checkpoint, {layer: self.regions[layer] for layer in layers}):
            size, step = self.regions[layer].size, self._step(layer)
            for start in range(0, max(size, 1), step):
                yield Chunk(layer, start, min(start + step, size))


def in_file_order(checkpoint: Checkpoint, regions: Mapping[str, Region]) -> list[str]:
    """The layers in the order in which they lie in the files."""

    def place(layer: str) -> tuple[str, int, int]:
        region = regions[layer]
        entry = checkpoint.entries[region.tensors[0]]
        return entry.file, entry.begin, region.start

    return sorted(regions, key=place)
