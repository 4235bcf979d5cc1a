"""An open checkpoint: its tensors by name, read when they are looked at, in parts if need be."""

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lamplighter.checkpoint.dtypes import CODES, TORCH, width_in_bytes
from lamplighter.checkpoint.files import Files, find_files
from lamplighter.checkpoint.header import read_header, shown
from lamplighter.checkpoint.opened import Opened, Stamp, stamp_of
from lamplighter.checkpoint.torch_files import in_order, offsets_in_file, read_torch
from lamplighter.errors import LamplighterError
from lamplighter.naming import closest, listed


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a checkpoint: what it is, in which file, and from where to where in it, in bytes.

    Args:
        name: its name.
        dtype: its dtype, as safetensors files call it.
        shape: its shape.
        begin: where it begins in the file.
        end: where it ends.
        file: the file's name within the checkpoint's folder.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    file: str

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return self.end - self.begin

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """What torch calls its dtype, if it has a name for it."""
        return TORCH.get(self.dtype)


@dataclass(frozen=True)
class Shard:
    """A file of a checkpoint: its name, its tensors in the order of their bytes, its metadata and size."""

    file: str
    tensors: list[str]
    metadata: dict[str, str]
    nbytes: int


class Checkpoint(Mapping[str, Tensor]):
    """A checkpoint as a mapping of names to tensors. Opening it reads headers only; a tensor is read when asked for.

    Any number of threads may read from one. Nothing is mapped into memory, so that what has been read and let go does
    not count as the process's own.

    Args:
        path: a `.safetensors` file, a `.pt` or `.bin` file of torch, or a folder such as Hugging Face's.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"fc.weight": torch.tensor([[3.0, -1.0], [2.0, 4.0]])}, f"{folder}/model.safetensors")
    ...     checkpoint = Checkpoint(f"{folder}/model.safetensors")
    ...     print(list(checkpoint), checkpoint["fc.weight"][1], checkpoint.read("fc.weight", 1, 3))
    ['fc.weight'] tensor([2., 4.]) tensor([-1.,  2.])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.files: Files = find_files(self.path)
        self.shards: list[Shard] = []
        self.entries: dict[str, Stored] = {}
        self.dropped: list[str] = []
        self._memory: dict[str, Tensor] = {}
        self._aliases: dict[str, object] = {}
        self.stamps: dict[str, Stamp] = {}
        self._local = threading.local()
        for file in self.files.shards:
            self.stamps[file] = stamp_of(self.files.root / file)
            (self._add_safetensors if file.endswith(".safetensors") else self._add_torch)(file)
        self._check_index()

    @property
    def others(self) -> list[Path]:
        """Files beside the tensors that are carried over, by their paths within the folder."""
        return self.files.others

    @property
    def nbytes(self) -> int:
        """How many bytes the tensors take."""
        return sum(entry.nbytes for entry in self.entries.values())

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name).view(self._entry(name).shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, {len(self):,} tensors, {self.nbytes:,} bytes)"

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """The entries of a tensor from one to before another, in flat row-major order, as a 1-D tensor."""
        entry = self._entry(name)
        dtype = entry.torch_dtype
        if dtype is None:
            where = self.files.root / entry.file
            raise LamplighterError(
                f"{where}: tensor {shown(name)} has dtype {entry.dtype}, which torch cannot read",
                "convert it with what wrote it",
            )
        width = width_in_bytes(entry.dtype)
        size = entry.nbytes // width
        stop = size if stop is None else stop
        _check_range(name, start, stop, size, "entries")
        found = torch.empty(stop - start, dtype=dtype, device="cpu")
        self.read_bytes(name, start * width, stop * width, found.view(torch.uint8).numpy().data)
        return found

    def read_bytes(self, name: str, begin: int, end: int, into: memoryview | None = None) -> memoryview:
        """The bytes of a tensor from one to before another, into a writable buffer if one is given."""
        entry = self._entry(name)
        _check_range(name, begin, end, entry.nbytes, "bytes")
        if into is not None and (into.readonly or into.itemsize != 1 or into.ndim != 1 or len(into) < end - begin):
            raise LamplighterError(
                f"the buffer for {end - begin:,} bytes of {shown(name)} is read-only, too short, or not one of bytes",
                "give a writable one, such as memoryview(bytearray(end - begin))",
            )
        room = memoryview(bytearray(end - begin)) if into is None else into[: end - begin]
        if len(room) == 0:
            return room
        if name in self._memory:
            torch.frombuffer(room, dtype=torch.uint8).copy_(self._memory[name][begin:end])
        else:
            self._opened(entry.file).read_into(room, entry.begin + begin)
        return room

    def check_unchanged(self) -> None:
        """An error if a file is another one than when the checkpoint was opened."""
        for file, stamp in self.stamps.items():
            if stamp_of(self.files.root / file) != stamp:
                raise _changed(self.files.root / file)

    def memory_of(self, name: str) -> object:
        """What several names of one tensor have in common; a tensor of a safetensors file has but one."""
        return self._aliases.get(name, name)

    def _entry(self, name: str) -> Stored:
        try:
            return self.entries[name]
        except (KeyError, TypeError):
            raise KeyError(f"{name!r} is not in {self.path}; {closest(str(name), self.entries)}") from None

    def _opened(self, file: str) -> Opened:
        """This thread's open file; each keeps the one it last read from."""
        opened: Opened | None = getattr(self._local, "opened", None)
        path = self.files.root / file
        if opened is None or opened.path != path:
            opened = Opened(path)
            if opened.stamp != self.stamps[file]:
                raise _changed(path)
            self._local.opened = opened
        return opened

    def _add_safetensors(self, file: str) -> None:
        header = read_header(self.files.root / file)
        self._add(
            file,
            [Stored(e.name, e.dtype, e.shape, e.begin, e.end, file) for e in header.entries.values()],
            header.metadata,
        )

    def _add_torch(self, file: str) -> None:
        path = self.files.root / file
        tensors, aside = read_torch(path)
        self.dropped += [f"{file}: {name}" for name in aside]
        places = offsets_in_file(tensors, path)
        stored = []
        for name, tensor in tensors.items():
            begin = places.get(name, 0)
            stored.append(Stored(name, CODES[tensor.dtype], tuple(tensor.shape), begin, begin + tensor.nbytes, file))
            self._aliases[name] = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        self._memory |= {name: in_order(tensor) for name, tensor in tensors.items() if name not in places}
        self._add(file, stored, {"format": "pt"})

    def _add(self, file: str, found: list[Stored], metadata: dict[str, str]) -> None:
        for entry in found:
            if entry.name in self.entries:
                raise LamplighterError(
                    f"tensor {shown(entry.name)} is both in {self.entries[entry.name].file} and in {file} of "
                    f"{self.files.root}",
                    "keep one checkpoint to a folder",
                )
            self.entries[entry.name] = entry
        self.shards.append(Shard(file, [entry.name for entry in found], metadata, self.stamps[file].size))

    def _check_index(self) -> None:
        """An error where the index says otherwise than the files."""
        places = self.files.places
        lost = [shown(n) for n, file in places.items() if n not in self.entries or self.entries[n].file != file]
        if lost:
            raise LamplighterError(
                f"{self.files.root / str(self.files.index)} names tensors that are not where it says: {listed(lost)}",
                "fetch the checkpoint again",
            )


def _check_range(name: str, start: int, stop: int, size: int, what: str) -> None:
    """An error unless the numbers are from one to before another of a tensor's entries or bytes."""
    whole = type(start) is int and type(stop) is int  # the usual case, without a look at the protocol of whole numbers
    if not whole and not all(hasattr(each, "__index__") and not isinstance(each, bool) for each in (start, stop)):
        raise LamplighterError(f"{start!r} to {stop!r} of {shown(name)} are no whole numbers", f"count {what} from 0")
    if not 0 <= start <= stop <= size:
        raise LamplighterError(
            f"{start:,} to {stop:,} are not within the {size:,} {what} of {shown(name)}",
            "expected 0 <= start <= stop <= size; negative numbers do not count from the end",
        )


def _changed(path: Path) -> LamplighterError:
    return LamplighterError(f"{path} was changed while it was read", "try again when nothing writes to it")
