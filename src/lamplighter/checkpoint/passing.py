"""The last reading: every byte of a shard passes through on its way to the new file, masked where a layer is."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import NamedTuple, Protocol

import torch

from lamplighter.checkpoint.checkpoint import Checkpoint, Shard
from lamplighter.checkpoint.discovery import Region
from lamplighter.checkpoint.masking import CutMask, Mask, pattern_mask
from lamplighter.checkpoint.progress import Meter, Tell, silent
from lamplighter.checkpoint.stream import CHUNK, Buffers
from lamplighter.checkpoint.threads import Workers
from lamplighter.checkpoint.writing import Buffer, Described, ShardWriter
from lamplighter.spectra import Cut

PASSED = 1 << 20  # bytes that are masked and written at once: they stay in cache


@dataclass(frozen=True)
class Decision:
    """What each layer keeps: its cut, or its budget and a pattern. All that masking a shard needs to know.

    Args:
        regions: where the layers stand.
        cuts: where each is cut, unless there is a pattern.
        budgets: how many weights each keeps.
        pattern: "row" or "N:M", if one was asked for.
    """

    regions: Mapping[str, Region]
    cuts: Mapping[str, Cut]
    budgets: Mapping[str, int]
    pattern: str | None = None

    def mask(self, layer: str, chunk: int, stopped: Event) -> Mask:
        """What masks a layer, in chunks of about so many bytes."""
        region = self.regions[layer]
        if self.pattern is not None:
            return pattern_mask(region, self.budgets[layer], self.pattern, chunk)
        return CutMask(self.cuts[layer], max(chunk // region.dtype.itemsize, 1), stopped)


class Stretch(NamedTuple):
    """The bytes of a tensor from one to before another; a layer lies in it as a whole, or not at all."""

    tensor: str
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """How many there are."""
        return self.end - self.begin


class Writer(Protocol):
    """Whatever takes the bytes that pass through."""

    def write_at(self, name: str, offset: int, chunk: Buffer) -> None:
        """Some bytes of a tensor, from `offset` on."""

    def abandon(self) -> None:
        """Close it as it is."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of a tensor that pass through together; what masks them, and which of its chunks they are."""

    tensor: str
    begin: int
    end: int
    mask: Mask | None = None
    place: int = 0
    dtype: torch.dtype = torch.uint8


class Passage:
    """What passes the tensors of a checkpoint on, masked as was decided, with the same bytes whatever the threads.

    Args:
        checkpoint: what is read.
        decision: what the layers keep.
        threads: how many read, mask and write.
        chunk: how many bytes at once.
        tell: is told how much has been written.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        decision: Decision,
        threads: int,
        chunk: int = CHUNK,
        tell: Tell = silent,
    ) -> None:
        self.checkpoint = checkpoint
        self.decision = decision
        self.threads = threads
        self.chunk = min(chunk, PASSED)
        self._meter = Meter("writing", tell)
        self._meter.expect(checkpoint.nbytes)
        self._buffers = Buffers()
        self._layers: dict[str, list[str]] = {}
        for layer, region in decision.regions.items():
            for tensor in region.tensors:
                self._layers.setdefault(tensor, []).append(layer)
        for layers in self._layers.values():
            layers.sort(key=lambda layer: decision.regions[layer].start)

    def write_shard(
        self, shard: Shard, path: Path, described: list[Described], metadata: Mapping[str, str]
    ) -> ShardWriter:
        """Write all tensors of a shard to a new file, which is still to be closed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = ShardWriter(path, described, metadata)
        entries = self.checkpoint.entries
        self.pass_on((Stretch(tensor, 0, entries[tensor].nbytes) for tensor in shard.tensors), writer)
        return writer

    def pass_on(self, stretches: Iterable[Stretch], writer: Writer) -> None:
        """Write stretches of tensors, masked; the writer is still to be closed, unless something goes wrong."""

        def work(piece: _Piece) -> None:
            room = self._buffers.of(piece.end - piece.begin)
            data = room.numpy().data
            self.checkpoint.read_bytes(piece.tensor, piece.begin, piece.end, data)
            if piece.mask is not None:
                piece.mask.apply(room.view(piece.dtype), piece.place)
            writer.write_at(piece.tensor, piece.begin, data)
            self._meter.step(len(data))

        workers = Workers(self.threads, work)
        try:
            workers.run(piece for stretch in stretches for piece in self._pieces(stretch, workers.stopped))
        except BaseException:
            writer.abandon()
            raise

    def _pieces(self, stretch: Stretch, stopped: Event) -> Iterator[_Piece]:
        """All bytes of a stretch: those of its layers, and those between."""
        tensor, place, _ = stretch
        for layer in self._layers.get(tensor, []):
            region = self.decision.regions[layer]
            width = region.dtype.itemsize
            begin, end = region.start * width, (region.start + region.size) * width
            if begin < stretch.begin or end > stretch.end:
                continue
            yield from self._plain(tensor, place, begin)
            mask = self.decision.mask(layer, self.chunk, stopped)
            step = max(mask.step * width, 1)
            for number, start in enumerate(range(begin, end, step)):
                yield _Piece(tensor, start, min(start + step, end), mask, number, region.dtype)
            place = end
        yield from self._plain(tensor, place, stretch.end)

    def _plain(self, tensor: str, begin: int, end: int) -> Iterator[_Piece]:
        for start in range(begin, end, self.chunk):
            yield _Piece(tensor, start, min(start + self.chunk, end))
