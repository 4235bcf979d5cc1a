"""An open checkpoint whose tensors may be packed: the tensors of the original, decoded a chunk at a time."""

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.header import shown
from lamplighter.checkpoint.packed_codec import CHUNK, CHUNK_BYTES, WORDS, counts, decode
from lamplighter.checkpoint.packed_format import (
    KEY,
    MASK,
    VALUES,
    Described,
    Layout,
    check_counts,
    mask_bytes,
    not_packed,
    read_layout,
    words_in,
)
from lamplighter.checkpoint.packed_sources import read_words
from lamplighter.errors import LamplighterError

MASKS_AT_ONCE = 32 * CHUNK_BYTES  # so much of a bitmask is counted at once: 1 MB


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk of a tensor, in words.

    Args:
        name: the tensor's.
        start: its first word.
        stop: behind its last.
        first: where a sparse tensor's values of this chunk begin.
        values: how many they are.
    """

    name: str
    start: int
    stop: int
    first: int = 0
    values: int = 0

    @property
    def words(self) -> int:
        """How many words it has."""
        return self.stop - self.start


class Packed:
    """A checkpoint seen as the original it was packed from; one that is not packed is its own original.

    Args:
        path: a file or a folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.checkpoint = Checkpoint(path)
        self.layouts: dict[str, Layout] = {}
        self.homes: dict[str, str] = {}
        self.tensors: dict[str, Described] = {}  # dtype code and shape of each tensor of the original
        for shard in self.checkpoint.shards:
            entries = [self.checkpoint.entries[name] for name in shard.tensors]
            stored = {entry.name: (entry.dtype, entry.shape) for entry in entries}
            self.layouts[shard.file] = read_layout(self.file(shard.file), stored, shard.metadata)
            for name in self.layouts[shard.file].tensors:
                if name in self.homes:
                    raise LamplighterError(
                        f"tensor {shown(name)} is both in {self.file(self.homes[name])} and in {shard.file}",
                        "keep one checkpoint to a folder",
                    )
                self.homes[name] = shard.file
            self.tensors |= self.layouts[shard.file].tensors
        self.is_packed = any(KEY in shard.metadata for shard in self.checkpoint.shards)

    def check_packed(self) -> None:
        """An error unless every file is packed."""
        for shard in self.checkpoint.shards:
            if KEY not in shard.metadata:
                raise not_packed(self.file(shard.file))

    def file(self, name: str) -> Path:
        """The path of one of its files."""
        return self.checkpoint.files.root / name

    @property
    def nbytes(self) -> int:
        """How many bytes the tensors of the original take."""
        sizes = (words_in(*about) for about in self.tensors.values())
        return sum(words * width for words, width in sizes)

    def width(self, name: str) -> int:
        """How many bytes a word of a tensor has."""
        return words_in(*self.tensors[name])[1]

    def count(self, name: str) -> "array[int] | None":
        """How many values each chunk of a sparse tensor has: its bitmask is read, and checked. None of a dense one."""
        layout = self.layouts[self.homes[name]]
        if name not in layout.sparse:
            return None
        size, _ = words_in(*layout.tensors[name])
        ones, last = array("Q"), 0
        for mask in self._masks(name, mask_bytes(layout.tensors[name][1])):
            ones.extend(counts(mask))
            last = int(mask[-1])
        values = layout.sparse[name]
        check_counts(self.file(self.homes[name]), name, size=size, ones=sum(ones), values=values, last=last)
        return ones

    def pieces(self, name: str, counted: "array[int] | None" = None) -> Iterator[Piece]:
        """A tensor in chunks, one by one; what `count` told of it if that was asked before."""
        size, _ = words_in(*self.tensors[name])
        ones = self.count(name) if counted is None else counted
        first = 0
        for start in range(0, size, CHUNK):
            values = 0 if ones is None else ones[start // CHUNK]
            yield Piece(name, start, min(start + CHUNK, size), first, values)
            first += values

    def read(self, piece: Piece, into: Tensor | None = None) -> Tensor:
        """The words of a piece, put into a buffer if one is given."""
        layout = self.layouts[self.homes[piece.name]]
        if piece.name not in layout.sparse:
            words = read_words(self.checkpoint, piece.name, piece.start, piece.stop)
            return words if into is None else into.copy_(words)
        mask = read_words(self.checkpoint, piece.name + MASK, piece.start // 8, (piece.stop + 7) // 8)
        values = read_words(self.checkpoint, piece.name + VALUES, piece.first, piece.first + piece.values)
        if into is None:
            into = torch.empty(piece.words, dtype=WORDS[self.width(piece.name)], device="cpu")
        if not decode(mask, values, into):  # its bitmask was counted before
            raise LamplighterError(
                f"{self.file(self.homes[piece.name])} was changed while it was read",
                "try again when nothing writes to it",
            )
        return into

    def _masks(self, name: str, length: int) -> Iterator[Tensor]:
        for begin in range(0, length, MASKS_AT_ONCE):
            yield read_words(self.checkpoint, name + MASK, begin, min(begin + MASKS_AT_ONCE, length))
