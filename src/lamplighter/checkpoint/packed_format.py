"""How a packed file is described: which of its tensors belong to which of the original's (see docs/packed-format.md).

A tensor `NAME` of the original is stored either as it is, or as `NAME:mask`, a bitmask, and `NAME:values`, the entries
that are not zero. One entry of metadata, `lamplighter-packed`, tells which, and in which order the original had them.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lamplighter.checkpoint.dtypes import WIDTHS, width_in_bytes
from lamplighter.checkpoint.header import shown
from lamplighter.errors import LamplighterError

KEY = "lamplighter-packed"
VERSION = 1
MASK, VALUES = ":mask", ":values"
HEADER_COST = 256  # about what two entries in a header take more than one

Shape = tuple[int, ...]
Described = tuple[str, Shape]  # a tensor's dtype code and its shape


@dataclass(frozen=True)
class Layout:
    """One packed file, as the tensors of the original it holds.

    Args:
        tensors: dtype code and shape of each tensor of the original, in its order.
        sparse: of the tensors stored as bitmask and values, how many values there are.
        metadata: the original's own.
    """

    tensors: Mapping[str, Described]
    sparse: Mapping[str, int]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def stored(self) -> dict[str, Described]:
        """What the packed file holds: widest entries first, so that all of them lie where their width asks."""
        found: dict[str, Described] = {}
        for name, (dtype, shape) in self.tensors.items():
            if name in self.sparse:
                found[name + VALUES] = dtype, (self.sparse[name],)
                found[name + MASK] = "U8", (mask_bytes(shape),)
            else:
                found[name] = dtype, shape
        return dict(sorted(found.items(), key=lambda item: -WIDTHS[item[1][0]]))

    def described(self) -> dict[str, str]:
        """The packed file's metadata: the original's and our own entry."""
        shapes = [[name, list(shape) if name in self.sparse else None] for name, (_, shape) in self.tensors.items()]
        about = {"version": VERSION, "tensors": shapes}
        return {**self.metadata, KEY: json.dumps(about, separators=(",", ":"))}


def words_in(dtype: str, shape: Shape) -> tuple[int, int]:
    """How many words a tensor has, and how many bytes a word: one where several entries share a byte.

    >>> words_in("BF16", (3, 5)), words_in("F4", (3, 6))
    ((15, 2), (9, 1))
    """
    bits = math.prod(shape) * WIDTHS[dtype]
    width = 1 if WIDTHS[dtype] % 8 else width_in_bytes(dtype)
    return bits // 8 // width, width


def mask_bytes(shape: Iterable[int]) -> int:
    """How long a bitmask of so many entries is."""
    return (math.prod(shape) + 7) // 8


def pays(dtype: str, shape: Shape, values: int) -> bool:
    """Whether bitmask and values are smaller than the tensor itself, the longer header included."""
    if WIDTHS[dtype] % 8:  # entries that share bytes
        return False
    width = width_in_bytes(dtype)
    return mask_bytes(shape) + values * width + HEADER_COST < math.prod(shape) * width


def choose_sparse(tensors: Mapping[str, Described], values: Mapping[str, int]) -> dict[str, int]:
    """Which tensors to store as bitmask and values: where that pays, and no tensor has one of these names already."""
    return {
        name: values[name]
        for name, (dtype, shape) in tensors.items()
        if name in values
        and pays(dtype, shape, values[name])
        and name + MASK not in tensors
        and name + VALUES not in tensors
    }


def read_layout(file: Path, stored: Mapping[str, Described], metadata: Mapping[str, str]) -> Layout:
    """What a file's header describes; of a file that is not packed, itself. An error if it contradicts itself."""
    if KEY not in metadata:
        return Layout(dict(stored), {}, dict(metadata))
    tensors: dict[str, Described] = {}
    sparse: dict[str, int] = {}
    unused = set(stored)
    for name, shape in _read(file, metadata[KEY]):
        if shape is not None:
            sparse[name] = _check_parts(file, name, shape, stored)
        parts = {name} if shape is None else {name + MASK, name + VALUES}
        if not parts <= unused or name in tensors:
            raise _damaged(file, name, "it is listed, but not in the file, or listed twice")
        unused -= parts
        tensors[name] = stored[name] if shape is None else (stored[name + VALUES][0], shape)
    if unused:
        raise _damaged(file, min(unused), "it is in the file, but not listed")
    rest = {key: value for key, value in metadata.items() if key != KEY}
    return Layout(tensors, sparse, rest)


def check_counts(file: Path, name: str, *, size: int, ones: int, values: int, last: int) -> None:
    """An error unless so many bits of a bitmask are set as there are values, and its last byte none behind the end."""
    if size % 8 and last >> (size % 8):
        raise _damaged(file, name, f"bits are set behind its last entry, the {size:,}th")
    if ones != values:
        raise _damaged(file, name, f"its bitmask has {ones:,} bits set, but there are {values:,} values")


def not_packed(path: Path) -> LamplighterError:
    """What to say of a file that is none of ours."""
    return LamplighterError(f"{path} is not a packed file", "packed files are written by lamp pack or ll.pack")


def _read(file: Path, text: str) -> Iterator[tuple[str, Shape | None]]:
    """The tensors that are listed, with the shapes of those that are sparse."""
    try:
        about = json.loads(text)
        version, listed = about["version"], about.get("tensors")
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise _unreadable(file) from error
    if type(version) is int and version != VERSION:
        raise LamplighterError(
            f"{file} is packed in version {version}, expected {VERSION}",
            "update lamplighter, or pack the original again",
        )
    if type(version) is not int or not isinstance(listed, list):
        raise _unreadable(file)
    for each in listed:
        if not isinstance(each, list) or len(each) != 2 or not isinstance(each[0], str):
            raise _unreadable(file)
        name, shape = each
        if isinstance(shape, list) and all(type(length) is int and length > 0 for length in shape):
            yield name, tuple(shape)
        elif shape is None:
            yield name, None
        else:
            raise _damaged(file, name, "its shape is not a list of lengths")


def _check_parts(file: Path, name: str, shape: Shape, stored: Mapping[str, Described]) -> int:
    """How many values a sparse tensor has."""
    if name == "__metadata__":
        raise _damaged(file, name, "no tensor can have this name")
    if name in stored:
        raise _damaged(file, name, "it is there twice, sparse and as it is")
    for part in (name + MASK, name + VALUES):
        if part not in stored:
            raise _damaged(file, name, f"{part!r} is missing")
    if stored[name + MASK] != ("U8", (mask_bytes(shape),)):
        raise _damaged(file, name, f"its bitmask is not the {mask_bytes(shape):,} bytes of its shape {list(shape)}")
    dtype, length = stored[name + VALUES]
    if WIDTHS[dtype] % 8 or len(length) != 1:
        raise _damaged(file, name, f"its values are {dtype} of shape {list(length)}, expected one dimension")
    return length[0]


def _damaged(file: Path, name: str, why: str) -> LamplighterError:
    return LamplighterError(f"{file} is damaged at tensor {shown(name)}: {why}", "pack the original again")


def _unreadable(file: Path) -> LamplighterError:
    return LamplighterError(f"{file} is damaged: its metadata {KEY!r} cannot be read", "pack the original again")
