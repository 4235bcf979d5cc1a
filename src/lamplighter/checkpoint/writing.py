"""Writing safetensors files: the header first, then the tensors' bytes in any order, by any thread."""

import json
import os
import threading
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from types import TracebackType

from lamplighter.checkpoint.dtypes import WIDTHS
from lamplighter.checkpoint.staging import staged
from lamplighter.errors import LamplighterError

__all__ = ["Buffer", "ShardWriter", "header_bytes", "nbytes", "put", "size_of", "staged", "unwritable"]

Buffer = bytes | bytearray | memoryview
Described = tuple[str, str, tuple[int, ...]]  # name, dtype as safetensors files call it, shape


class ShardWriter:
    """A safetensors file while it is written. The same tensors and metadata give the same bytes.

    Args:
        path: where; a file that is there is overwritten.
        entries: name, dtype and shape of each tensor, in the order of their bytes.
        metadata: texts by name, written in the order of the names.
    """

    def __init__(self, path: Path, entries: Sequence[Described], metadata: Mapping[str, str]) -> None:
        self.path = path
        header = header_bytes(entries, metadata)
        self._sizes = {name: nbytes(dtype, shape) for name, dtype, shape in entries}
        self.places: dict[str, int] = {}
        self.nbytes = len(header)
        for name, size in self._sizes.items():
            self.places[name] = self.nbytes
            self.nbytes += size
        self._missing = sum(self._sizes.values())
        self._ends = dict.fromkeys(self._sizes, 0)
        self._lock = threading.Lock()
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise unwritable(path, error) from error
        put(path, self._descriptor, header, 0)

    def write(self, name: str, chunk: Buffer) -> None:
        """The next bytes of a tensor, behind those written of it before."""
        with self._lock:
            place = self._ends[name]
            self._ends[name] += memoryview(chunk).nbytes
        self.write_at(name, place, chunk)

    def write_at(self, name: str, offset: int, chunk: Buffer) -> None:
        """Some bytes of a tensor, from `offset` on. No byte may be written twice."""
        view = memoryview(chunk).cast("B")
        assert 0 <= offset <= self._sizes[name] - len(view), (name, offset, len(view))
        put(self.path, self._descriptor, view, self.places[name] + offset)
        with self._lock:
            self._missing -= len(view)

    def close(self) -> None:
        """Have the system write everything to the disk; an error if bytes are missing."""
        assert self._missing == 0, f"{self._missing:,} bytes of {self.path} were not written"
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise unwritable(self.path, error) from error
        finally:
            self.abandon()

    def leave_to_others(self) -> None:
        """Give the file its full length, have the system write it to the disk, and close it: others fill it."""
        try:
            os.ftruncate(self._descriptor, self.nbytes)
            os.fsync(self._descriptor)
        except OSError as error:
            raise unwritable(self.path, error) from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def put(path: Path, descriptor: int, chunk: Buffer, place: int) -> None:
    """Write all of a chunk to a place in an open file."""
    view = memoryview(chunk)
    done = 0
    while done < len(view):
        try:
            done += os.pwrite(descriptor, view[done:], place + done)
        except OSError as error:
            raise unwritable(path, error) from error


def nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """How many bytes a tensor takes.

    >>> nbytes("BF16", (2, 3))
    12
    """
    return prod(shape) * WIDTHS[dtype] // 8


def header_bytes(entries: Sequence[Described], metadata: Mapping[str, str]) -> bytes:
    """The beginning of the file: the header's length, and the header, padded so that data begin at a multiple of 8."""
    parts = [f'"__metadata__":{_json({key: metadata[key] for key in sorted(metadata)})}'] if metadata else []
    place = 0
    for name, dtype, shape in entries:
        end = place + nbytes(dtype, shape)
        parts.append(f'{_json(name)}:{{"dtype":"{dtype}","shape":{_json(shape)},"data_offsets":[{place},{end}]}}')
        place = end
    text = f"{{{','.join(parts)}}}".encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def size_of(entries: Sequence[Described], metadata: Mapping[str, str]) -> int:
    """How many bytes the file takes."""
    return len(header_bytes(entries, metadata)) + sum(nbytes(dtype, shape) for _, dtype, shape in entries)


def unwritable(path: Path, error: OSError) -> LamplighterError:
    """What the operating system would not write, as the user is told."""
    return LamplighterError(
        f"{path} cannot be written: {error.strerror or error}", "is the folder there, writable, with room on its disk?"
    )
