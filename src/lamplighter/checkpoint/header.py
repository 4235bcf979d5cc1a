"""The header of a safetensors file, read without trusting a number in it.

A file is eight bytes (the length of the header, little-endian), the header (a JSON object of names and what they are),
and the data, without holes. What is accepted here the safetensors library accepts too, with the same reading; names
given twice, which it takes the last of, and unknown fields are refused.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lamplighter.checkpoint.dtypes import WIDTHS
from lamplighter.errors import LamplighterError

LONGEST = 100_000_000  # the safetensors library's own limit on the header's length
_MOST = (1 << 63) - 1  # what torch can count to
_FIELDS = {"dtype", "shape", "data_offsets"}
METADATA = "__metadata__"
_HINT = "the file is damaged, cut short, or no safetensors file: fetch or write it again"


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of a file: what it is, and from where to where it stands, in bytes from the file's beginning."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Header:
    """What a file holds: its tensors in the order of their bytes, and its metadata."""

    entries: dict[str, Entry]
    metadata: dict[str, str]


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its keys as they stand, those given twice too."""


def read_header(path: Path) -> Header:
    """The header of a safetensors file; an error that names the file, and the tensor if one is wrong."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8:
                _refuse(path, f"it has {size} bytes, and a header takes at least 8")
            if length > LONGEST:
                _refuse(path, f"its header is said to take {length:,} bytes, expected at most {LONGEST:,}")
            if length > size - 8:
                _refuse(path, f"its header is said to take {length:,} bytes, but {size - 8:,} follow")
            text = file.read(length)
    except OSError as error:
        raise LamplighterError(
            f"{path} cannot be read: {error.strerror or error}", "check the path, and that you may read it"
        ) from error
    if len(text) != length:
        _refuse(path, "it became shorter while it was read")
    return parse_header(text, size, path)


def parse_header(text: bytes, size: int, path: Path) -> Header:
    """The header from its JSON text; `size` is that of the whole file."""
    fields = _unique(_json(text, path), path, "the header")
    metadata = _metadata(fields.pop(METADATA, None), path)
    start = 8 + len(text)
    entries = [_entry(name, given, start, path) for name, given in fields.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    _check_coverage(entries, start, size, path)
    return Header({entry.name: entry for entry in entries}, metadata)


def shown(name: str) -> str:
    """A tensor's name as an error shows it: quoted, and cut where it is long.

    >>> shown("a" * 1000)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'"
    """
    return repr(name if len(name) <= 120 else f"{name[:40]}...{name[-40:]}")


def _refuse(path: Path, why: str) -> NoReturn:
    raise LamplighterError(f"{path} cannot be read as safetensors: {why}", _HINT)


def _json(text: bytes, path: Path) -> _Pairs:
    try:
        found = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_Pairs,
            parse_int=_whole,
            parse_float=_no_whole,
            parse_constant=_no_whole,
        )
    except RecursionError:
        _refuse(path, "its header is nested too deeply")
    except ValueError as error:  # UTF-8 and JSON alike
        _refuse(path, f"its header is no JSON ({str(error)[:200]})")
    if not isinstance(found, _Pairs):
        _refuse(path, "its header is no JSON object")
    return found


def _whole(digits: str) -> int:
    if digits.startswith("-") or len(digits) > 20:
        _no_whole(digits)
    return int(digits)


def _no_whole(digits: str) -> NoReturn:
    raise ValueError(f"{digits[:40]} is no whole number from 0 up")


def _unique(pairs: _Pairs, path: Path, where: str) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        _refuse(path, f"{where} names {shown(twice)} twice")
    for key in fields:
        _check_text(key, path, where)
    return fields


def _check_text(text: object, path: Path, where: str) -> None:
    """An error for what is no text, or text that no UTF-8 stands for."""
    if not isinstance(text, str):
        _refuse(path, f"{where} holds a {type(text).__name__}, expected text")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            _refuse(path, f"{where} holds {shown(text)}, which is no text")


def _metadata(given: Any, path: Path) -> dict[str, str]:  # noqa: ANN401
    if given is None:
        return {}
    if not isinstance(given, _Pairs):
        _refuse(path, "its metadata is no JSON object")
    metadata = _unique(given, path, "the metadata")
    for value in metadata.values():
        _check_text(value, path, "the metadata")
    return metadata


def _entry(name: str, given: Any, start: int, path: Path) -> Entry:  # noqa: ANN401
    what = f"tensor {shown(name)}"
    if not isinstance(given, _Pairs):
        _refuse(path, f"{what} is described by no JSON object")
    fields = _unique(given, path, what)
    if fields.keys() != _FIELDS:
        _refuse(path, f"{what} has the fields {sorted(fields)}, expected {sorted(_FIELDS)}"[:400])
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in WIDTHS:
        _refuse(path, f"{what} has the unknown dtype {str(dtype)[:40]!r}")
    begin, end = _numbers(offsets, path, f"{what}'s data_offsets", count=2)
    sizes = _numbers(shape, path, f"{what}'s shape")
    _check_size(sizes, WIDTHS[dtype], (begin, end), path, what)
    return Entry(name, dtype, sizes, start + begin, start + end)


def _numbers(given: object, path: Path, what: str, count: int | None = None) -> tuple[int, ...]:
    if not isinstance(given, list) or isinstance(given, _Pairs) or not all(type(each) is int for each in given):
        _refuse(path, f"{what} is no list of whole numbers")
    if count is not None and len(given) != count:
        _refuse(path, f"{what} has {len(given)} numbers, expected {count}")
    if any(each > _MOST for each in given):
        _refuse(path, f"{what} holds a number of {max(given):,}")
    return tuple(given)


def _check_size(shape: tuple[int, ...], width: int, offsets: tuple[int, int], path: Path, what: str) -> None:
    entries = 1
    for size in shape:  # from the left, as the library does: it stops at the first product that is too large
        entries *= size
        if entries * width > _MOST:
            _refuse(path, f"{what} would have more entries than can be counted")
    nonzero = 1
    for size in shape:
        nonzero *= max(size, 1)
        if nonzero > _MOST:
            _refuse(path, f"{what} has a shape larger than can be counted")
    begin, end = offsets
    if end < begin:
        _refuse(path, f"{what} ends at {end:,}, before it begins at {begin:,}")
    if entries * width % 8:
        _refuse(path, f"{what} ends within a byte")
    if end - begin != entries * width // 8:
        _refuse(path, f"{what} takes {end - begin:,} bytes, but its shape and dtype take {entries * width // 8:,}")


def _check_coverage(entries: list[Entry], start: int, size: int, path: Path) -> None:
    """An error where tensors overlap, leave a hole, or do not end where the file does."""
    place = start
    for entry in entries:
        if entry.begin != place:
            how = "overlaps the one before it" if entry.begin < place else "leaves a hole before it"
            _refuse(path, f"tensor {shown(entry.name)} {how}")
        if entry.end > size:
            missing = entry.end - size
            _refuse(path, f"tensor {shown(entry.name)} ends {missing:,} bytes behind the end of the file")
        place = entry.end
    if place != size:
        _refuse(path, f"{size - place:,} bytes at its end belong to no tensor")
