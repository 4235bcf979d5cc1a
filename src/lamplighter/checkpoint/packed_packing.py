"""Packing: counted first, since a file's header says how many values follow, then encoded and written, in chunks."""

import os
import time
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from lamplighter.checkpoint.output import safetensors_name
from lamplighter.checkpoint.packed_codec import CHUNK, count, encode, raw
from lamplighter.checkpoint.packed_conversion import Conversion, Watch, ignore
from lamplighter.checkpoint.packed_folders import (
    NewFile,
    check_target,
    left_out,
    original_index,
    packed_index,
    write_files,
)
from lamplighter.checkpoint.packed_format import MASK, VALUES, Layout, choose_sparse, words_in
from lamplighter.checkpoint.packed_reading import Piece
from lamplighter.checkpoint.packed_sources import Given, Part, Source, open_source
from lamplighter.checkpoint.threads import Workers, thread_count
from lamplighter.checkpoint.writing import ShardWriter
from lamplighter.errors import LamplighterError

Counts = dict[str, "array[int]"]  # of each tensor, how many words are not zero, chunk by chunk


def pack(
    src: Given,
    dst: str | os.PathLike[str],
    *,
    force: bool = False,
    threads: int | None = None,
    watch: Watch = ignore,
) -> Conversion:
    """Write a sparse checkpoint as bitmasks and nonzero values; `unpack` gives every bit of it back.

    Every tensor is stored the way that is smaller, as it is or sparse, whatever its dtype. The result is a safetensors
    file for a file, a Module or a mapping, and a folder of them for a folder, with its other files beside them. The
    source is read twice, a chunk at a time: a file's header says how many values follow, so they are counted first.

    Args:
        src: a checkpoint's path; or a Module, or a mapping of tensors.
        dst: where to write, in another place than `src`.
        force: replace what is there.
        threads: how many to use; about as many as there are processors if None. The result does not depend on it.
        watch: is told how many bytes are done with, twice the size of the tensors in all; by any thread.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = pack({"w": torch.eye(100)}, f"{folder}/packed.safetensors")
    >>> done.tensors, done.sparse, done.dense_bytes > 20 * done.packed_bytes
    (1, 1, True)
    """
    source, workers = open_source(src), thread_count(threads)
    check_target(Path(dst), source.files, force=force)
    began = time.perf_counter()
    counted = _count_all(source, workers, watch)
    layouts = {part.file: _plan(part, counted) for part in source.parts}
    new = {
        file: NewFile(file if source.files is None else safetensors_name(file), layout.stored(), layout.described())
        for file, layout in layouts.items()
    }
    by_name = {new[file].name: layout for file, layout in layouts.items()}

    def fill(name: str, writer: ShardWriter) -> None:
        work = partial(_write_piece, source, by_name[name], writer, watch)
        Workers(workers, work).run(_pieces(by_name[name], counted))
        source.check_unchanged()

    index = None
    if source.files is not None:
        text = original_index(source.files, {file: layout.tensors for file, layout in layouts.items()})
        index = None if text is None else packed_index(list(new.values()), text)
    write_files(Path(dst), source.files, list(new.values()), fill, index=index, force=force)
    dense = [NewFile(file, layout.tensors, layout.metadata).nbytes for file, layout in layouts.items()]
    return Conversion(
        tensors=sum(len(layout.tensors) for layout in layouts.values()),
        sparse=sum(len(layout.sparse) for layout in layouts.values()),
        dense_bytes=sum(dense),
        packed_bytes=sum(file.nbytes for file in new.values()),
        seconds=time.perf_counter() - began,
        left_out=() if source.files is None else left_out(source.files),
    )


def _count_all(source: Source, workers: int, watch: Watch) -> Counts:
    """How many words of each chunk are not zero."""
    sizes = {name: words_in(*about)[0] for part in source.parts for name, about in part.tensors.items()}
    counted: Counts = {name: array("Q", bytes(8 * -(-size // CHUNK))) for name, size in sizes.items()}

    def work(piece: Piece) -> None:
        words = source.words(piece.name, piece.start, piece.stop)
        counted[piece.name][piece.start // CHUNK] = count(words)
        watch(words.nbytes)

    # One by one: of a checkpoint of terabytes they would be millions.
    pieces = (
        Piece(name, start, min(start + CHUNK, size)) for name, size in sizes.items() for start in range(0, size, CHUNK)
    )
    Workers(workers, work).run(pieces)
    return counted


def _plan(part: Part, counted: Counts) -> Layout:
    return Layout(part.tensors, choose_sparse(part.tensors, {n: sum(counted[n]) for n in part.tensors}), part.metadata)


def _pieces(layout: Layout, counted: Counts) -> Iterator[Piece]:
    """The chunks of a file's tensors, each with the place of its values."""
    for name, (dtype, shape) in layout.tensors.items():
        size, _ = words_in(dtype, shape)
        first = 0
        for place, values in enumerate(counted[name]):
            yield Piece(name, place * CHUNK, min(place * CHUNK + CHUNK, size), first, values)
            first += values


def _write_piece(source: Source, layout: Layout, writer: ShardWriter, watch: Watch, piece: Piece) -> None:
    words = source.words(piece.name, piece.start, piece.stop)
    width = words.element_size()
    if piece.name not in layout.sparse:
        writer.write_at(piece.name, piece.start * width, raw(words))
    else:
        mask, values = encode(words)
        if values.numel() != piece.values:
            raise LamplighterError(
                f"tensor {piece.name!r} was changed while it was packed", "try again when nothing writes to it"
            )
        writer.write_at(piece.name + MASK, piece.start // 8, raw(mask))
        if piece.values:
            writer.write_at(piece.name + VALUES, piece.first * width, raw(values))
    watch(words.nbytes)
