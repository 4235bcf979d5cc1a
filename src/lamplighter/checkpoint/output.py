"""The files of a pruned checkpoint: their names, their metadata, and what is carried over."""

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from lamplighter.checkpoint.checkpoint import Checkpoint, Shard
from lamplighter.checkpoint.opened import Opened
from lamplighter.checkpoint.writing import Described, size_of, unwritable

RECORD = "lamplighter"  # the entry of the metadata that says how a file was made
_COPIED = 1 << 22  # bytes at a time


@dataclass(frozen=True)
class Output:
    """What is written: a file of safetensors for each shard, an index, and files carried over.

    Args:
        checkpoint: what it is made of.
        record: how it was made, for the metadata.
        file: the one file's name, if the result is a file.
    """

    checkpoint: Checkpoint
    record: Mapping[str, Any]
    file: str | None = None

    def name_of(self, shard: Shard) -> str:
        """What the shard's file is called in the result."""
        return self.file or safetensors_name(shard.file)

    def path_of(self, shard: Shard, root: Path) -> Path:
        """Where the shard's file is written, if the result is made at `root`."""
        return root if self.file else root / self.name_of(shard)

    def described(self, shard: Shard) -> list[Described]:
        """The tensors of a shard, as a writer wants them."""
        entries = self.checkpoint.entries
        return [(name, entries[name].dtype, entries[name].shape) for name in shard.tensors]

    def metadata(self, shard: Shard) -> dict[str, str]:
        """The shard's metadata, and how it was made. Loaders of models ask for a format where there are metadata."""
        base = shard.metadata or {"format": "pt"}
        earlier = _earlier(shard.metadata.get(RECORD))
        record = {**self.record, "earlier": earlier} if earlier else self.record
        return {**base, RECORD: json.dumps(record, sort_keys=True)}

    def names(self) -> set[str]:
        """The files of the result, by their paths within it."""
        index = self.index()
        shards = {self.name_of(shard) for shard in self.checkpoint.shards}
        return shards | {path.as_posix() for path in self.checkpoint.others} | ({index[0]} if index else set())

    def mode(self) -> int:
        """The permissions of the checkpoint's folder, or of its one file."""
        return _mode(self.checkpoint.files.root / ("" if self.file is None else self.checkpoint.shards[0].file))

    def make(self, shard: Shard, path: Path) -> None:
        """Make the shard's file, still empty, with the permissions of the one that it is made from."""
        if self.file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, [], _mode(self.checkpoint.files.root / shard.file))

    def index(self) -> tuple[str, bytes] | None:
        """The index, as it was, or under the new names of shards that were files of torch."""
        files = self.checkpoint.files
        if files.index is None:
            return None
        data = (files.root / files.index).read_bytes()
        if files.index.endswith(".safetensors.index.json"):
            return files.index, data
        content = json.loads(data)
        content["weight_map"] = {name: safetensors_name(file) for name, file in files.places.items()}
        stem = files.index.removesuffix(".index.json")
        return f"{safetensors_name(stem)}.index.json", json.dumps(content, indent=2).encode()

    def nbytes(self) -> int:
        """How many bytes all of it takes."""
        shards = sum(size_of(self.described(shard), self.metadata(shard)) for shard in self.checkpoint.shards)
        index = self.index()
        root = self.checkpoint.files.root
        carried = 0 if self.file else sum((root / path).stat().st_size for path in self.checkpoint.others)
        return shards + carried + (len(index[1]) if index and not self.file else 0)


def safetensors_name(file: str) -> str:
    """What a shard's file is called once it is safetensors.

    >>> safetensors_name("pytorch_model-00001-of-00002.bin")
    'model-00001-of-00002.safetensors'
    """
    path = PurePosixPath(file)
    if path.suffix == ".safetensors":
        return file
    return str(path.with_name(path.stem.removeprefix("pytorch_") + ".safetensors"))


def write_rest(output: Output, root: Path) -> None:
    """Write the index, and copy the files that are carried over."""
    files, index = output.checkpoint.files, output.index()
    if index is not None:
        write_file(root / index[0], [memoryview(index[1])], _mode(files.root / str(files.index)))
    for path in files.others:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        write_file(root / path, content_of(files.root / path), _mode(files.root / path))


def _earlier(given: str | None) -> list[dict[str, Any]]:
    """The records of the steps that made what is read, the first one first."""
    try:
        last = json.loads(given or "null")
    except (ValueError, RecursionError):
        return []
    if not isinstance(last, dict):
        return []
    before = last.pop("earlier", [])
    return [each for each in before if isinstance(each, dict)] + [last] if isinstance(before, list) else [last]


def _mode(path: Path) -> int:
    """The permissions of a file, and what its owner needs to write and read a new one."""
    return stat.S_IMODE(path.stat().st_mode) & 0o777 | 0o600


def content_of(path: Path) -> Iterator[memoryview]:
    """The bytes of a file, a few MB at a time."""
    opened = Opened(path)
    for begin in range(0, opened.stamp.size, _COPIED):
        room = memoryview(bytearray(min(_COPIED, opened.stamp.size - begin)))
        opened.read_into(room, begin)
        yield room


def write_file(path: Path, parts: Iterable[bytes | memoryview], mode: int = 0o666) -> None:
    """Write a file to the disk: whatever is renamed to its place has to be there before."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags, mode), "wb") as file:  # the system takes away what the umask says
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(path, error) from error
