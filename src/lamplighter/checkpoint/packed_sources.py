"""What is packed: tensors in the files of a checkpoint, or in memory, read a chunk at a time."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.dtypes import CODES
from lamplighter.checkpoint.files import Files
from lamplighter.checkpoint.packed_codec import WORDS, raw, words_of
from lamplighter.checkpoint.packed_format import KEY, Described, words_in
from lamplighter.errors import LamplighterError
from lamplighter.modules import unwrap
from lamplighter.naming import natural_key

Given = str | os.PathLike[str] | nn.Module | Mapping[str, Tensor]


@dataclass(frozen=True)
class Part:
    """What becomes one file: its name, its tensors in the order of their bytes, its metadata."""

    file: str
    tensors: dict[str, Described]
    metadata: dict[str, str]


class Source(Protocol):
    """Tensors that can be read in chunks, by any thread."""

    parts: list[Part]
    files: Files | None

    def words(self, name: str, start: int, stop: int) -> Tensor:
        """Some words of a tensor, in flat row-major order."""

    def check_unchanged(self) -> None:
        """An error if it is no longer what it was when it was opened."""


class FileSource:
    """The tensors of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.files: Files | None = checkpoint.files
        self.parts = [
            Part(shard.file, {name: _described(checkpoint, name) for name in shard.tensors}, shard.metadata)
            for shard in checkpoint.shards
        ]

    def words(self, name: str, start: int, stop: int) -> Tensor:
        """Some words of a tensor, in flat row-major order."""
        return read_words(self.checkpoint, name, start, stop)

    def check_unchanged(self) -> None:
        """An error if a file is another one than when it was opened."""
        self.checkpoint.check_unchanged()


class MemorySource:
    """Tensors in memory, on any device: they become one file, the widest entries first, so that all lie aligned."""

    files: Files | None = None

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            check_tensor(name, tensor)
        # Contiguous once, lest every chunk of a transposed tensor make a copy of all of it.
        self.tensors = {name: tensor.detach().contiguous().view(-1) for name, tensor in tensors.items()}
        names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), natural_key(name)))
        described = {name: (CODES[tensors[name].dtype], tuple(tensors[name].shape)) for name in names}
        self.parts = [Part("", described, {"format": "pt"})]

    def words(self, name: str, start: int, stop: int) -> Tensor:
        """Some words of a tensor, in flat row-major order."""
        return words_of(self.tensors[name][start:stop].cpu())

    def check_unchanged(self) -> None:
        """Tensors in memory are the caller's: nothing tells."""


def open_source(src: Given) -> Source:
    """The tensors of a checkpoint, a Module or a mapping; what is packed already is an error."""
    if isinstance(src, nn.Module):
        return MemorySource(own_tensors(src))
    checkpoint = src if isinstance(src, Checkpoint) else None
    if checkpoint is None and isinstance(src, str | os.PathLike):
        checkpoint = Checkpoint(src)
    if checkpoint is None:
        if not isinstance(src, Mapping):
            raise LamplighterError(
                f"cannot pack a {type(src).__name__}", "pass a checkpoint's path, a Module, or a mapping of tensors"
            )
        return MemorySource(src)
    for shard in checkpoint.shards:
        if KEY in shard.metadata:
            raise LamplighterError(
                f"{checkpoint.files.root / shard.file} is packed already", "lamp unpack gives the original back"
            )
    return FileSource(checkpoint)


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What a model's `state_dict` holds; a tensor with several names under the first of them."""
    first = {id(tensor): name for name, tensor in reversed(states(model).items())}
    return {name: tensor for name, tensor in states(model).items() if first[id(tensor)] == name}


def states(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and persistent buffers of a model by every name they have; anything else is an error."""
    found = unwrap(model).state_dict(keep_vars=True)
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise LamplighterError(
                f"the model's state holds {name!r}, a {type(value).__name__}; packed files hold tensors",
                "pass a mapping of the tensors instead",
            )
    return dict(found)


def read_words(checkpoint: Checkpoint, name: str, start: int, stop: int) -> Tensor:
    """Some words of a tensor of a checkpoint, whatever its dtype."""
    _, width = words_in(*_described(checkpoint, name))
    words = torch.empty(stop - start, dtype=WORDS[width], device="cpu")
    checkpoint.read_bytes(name, start * width, stop * width, raw(words))
    return words


def _described(checkpoint: Checkpoint, name: str) -> Described:
    entry = checkpoint.entries[name]
    return entry.dtype, entry.shape


def check_tensor(name: object, tensor: object) -> None:
    """An error for what is no tensor, or holds its values in another way than as a plain array."""
    if not isinstance(name, str) or not isinstance(tensor, Tensor):
        raise LamplighterError(
            f"{name!r} is a {type(tensor).__name__}, expected a tensor by its name",
            "pass a mapping of names to tensors",
        )
    if name == "__metadata__" or not _is_utf8(name):
        raise LamplighterError(f"no tensor of a safetensors file can have the name {name!r}", "give it another name")
    plain = type(tensor) in (Tensor, nn.Parameter) or type(tensor).__name__ == "Buffer"
    if not plain or tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in CODES:
        kind = f"{type(tensor).__name__} of {tensor.dtype} on {tensor.device.type}, layout {tensor.layout}"
        raise LamplighterError(
            f"tensor {name!r} is a {kind}; expected an ordinary dense tensor with values",
            "convert it first, or leave it out",
        )


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
