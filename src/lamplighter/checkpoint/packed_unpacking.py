"""Unpacking: every bit of the original from its packed files, in chunks."""

import os
import time
from functools import partial
from pathlib import Path

from lamplighter.checkpoint.packed_codec import raw
from lamplighter.checkpoint.packed_conversion import Conversion, Watch, ignore
from lamplighter.checkpoint.packed_folders import NewFile, check_target, left_out, restored_index, write_files
from lamplighter.checkpoint.packed_reading import Packed, Piece
from lamplighter.checkpoint.threads import Workers, thread_count
from lamplighter.checkpoint.writing import ShardWriter


def unpack(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    force: bool = False,
    threads: int | None = None,
    watch: Watch = ignore,
) -> Conversion:
    """Write the checkpoint that `pack` made a packed one of: every bit of its tensors, and its metadata.

    A damaged file is an error that names the tensor, before anything stands in `dst`. Where the original was written by
    `lamp prune`, by `unpack`, or by the safetensors library with no more than one entry of metadata, its very bytes
    come back.

    Args:
        src: a packed file, or a folder of them.
        dst: where to write, in another place than `src`.
        force: replace what is there.
        threads: how many to use; about as many as there are processors if None. The result does not depend on it.
        watch: is told how many bytes of tensors are written, by any thread.

    >>> import tempfile, torch
    >>> from lamplighter import Checkpoint, pack
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     packed = pack({"w": torch.eye(100)}, f"{folder}/packed.safetensors")
    ...     done = unpack(f"{folder}/packed.safetensors", f"{folder}/dense.safetensors")
    ...     back = Checkpoint(f"{folder}/dense.safetensors")["w"]
    >>> torch.equal(back, torch.eye(100))
    True
    """
    began = time.perf_counter()
    packed, workers = Packed(src), thread_count(threads)
    packed.check_packed()
    files = packed.checkpoint.files
    check_target(Path(dst), files, force=force)
    new = [NewFile(file, layout.tensors, layout.metadata) for file, layout in packed.layouts.items()]
    index = restored_index(files, {file: layout.tensors for file, layout in packed.layouts.items()})
    counted = {name: packed.count(name) for name in packed.homes}  # all bitmasks are checked before a file is made

    def fill(name: str, writer: ShardWriter) -> None:
        pieces = (piece for each in packed.layouts[name].tensors for piece in packed.pieces(each, counted[each]))
        Workers(workers, partial(_write_piece, packed, writer, watch)).run(pieces)
        packed.checkpoint.check_unchanged()

    write_files(Path(dst), files, new, fill, index=index, force=force)
    return Conversion(
        tensors=len(packed.homes),
        sparse=sum(len(layout.sparse) for layout in packed.layouts.values()),
        dense_bytes=sum(file.nbytes for file in new),
        packed_bytes=sum(shard.nbytes for shard in packed.checkpoint.shards),
        seconds=time.perf_counter() - began,
        left_out=left_out(files),
    )


def _write_piece(packed: Packed, writer: ShardWriter, watch: Watch, piece: Piece) -> None:
    words = packed.read(piece)
    writer.write_at(piece.name, piece.start * words.element_size(), raw(words))
    watch(words.nbytes)
