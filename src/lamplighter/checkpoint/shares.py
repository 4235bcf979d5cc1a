"""A checkpoint in shares, each the work of one task: whole layers, parts of large ones, and what lies between them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from lamplighter.checkpoint.discovery import Region
from lamplighter.checkpoint.passing import Stretch

T = TypeVar("T")

SHARE = 1 << 27  # bytes: some tenths of a second of work, whose spectra are small enough to hold all of them
_MOST = 512  # so many layers at most: each comes with a spectrum


def split_layers(regions: Mapping[str, Region], share: int) -> dict[str, dict[str, Region]]:
    """The parts of each layer, none larger than a share, by names of their own; a small layer is its only part."""
    return {layer: _split(layer, region, share) for layer, region in regions.items()}


def _split(layer: str, region: Region, share: int) -> dict[str, Region]:
    step = max(share // region.dtype.itemsize, 1)
    if region.size <= step:
        return {layer: region}
    parts = {}
    for start in range(0, region.size, step):
        size = min(step, region.size - start)
        # A part knows no rows: where these matter, layers are not split. No name of a tensor holds a zero.
        parts[f"{layer}\0{start}"] = replace(region, shape=(size,), start=region.start + start, output_axis=0)
    return parts


def split_tensor(
    tensor: str, nbytes: int, parts: Mapping[str, Region], share: int
) -> Iterator[tuple[Stretch, str | None]]:
    """A tensor in stretches: one for each part of its layers, with its name, and shares of what lies between them."""
    place = 0
    for part, region in sorted(parts.items(), key=lambda each: each[1].start):
        width = region.dtype.itemsize
        begin, end = region.start * width, (region.start + region.size) * width
        yield from _plain(tensor, place, begin, share)
        if begin < end:
            yield Stretch(tensor, begin, end), part
        place = end
    yield from _plain(tensor, place, nbytes, share)


def _plain(tensor: str, begin: int, end: int, share: int) -> Iterator[tuple[Stretch, None]]:
    for start in range(begin, end, share):
        yield Stretch(tensor, start, min(start + share, end)), None


def in_shares(items: Iterable[T], nbytes: Callable[[T], int], share: int) -> Iterator[list[T]]:
    """Items that follow each other, together as long as they are no more than a share.

    >>> list(in_shares([3, 4, 5, 9, 1], lambda item: item, 8))
    [[3, 4], [5], [9], [1]]
    """
    together: list[T] = []
    size = 0
    for item in items:
        if together and (size + nbytes(item) > share or len(together) == _MOST):
            yield together
            together, size = [], 0
        together.append(item)
        size += nbytes(item)
    if together:
        yield together
