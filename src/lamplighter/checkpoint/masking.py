"""Setting to zero what a layer does not keep, chunk by chunk as it passes through."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lamplighter.checkpoint.discovery import Region
from lamplighter.checkpoint.threads import Turnstile
from lamplighter.formats import FORMATS
from lamplighter.kernels import Run, cpu
from lamplighter.patterns import parse_pattern, row_counts, select_groups, select_rows
from lamplighter.spectra import Cut

AT_ONCE = 1 << 18  # entries that stay in cache
_PATTERN_CHUNK = 1 << 20  # bytes: selecting by a pattern takes many times the memory of the weights


class Mask(Protocol):
    """What sets a layer's chunks to zero where they are not kept."""

    @property
    def step(self) -> int:
        """How many entries a chunk has."""

    def apply(self, entries: Tensor, place: int) -> None:
        """Set to zero in place what the chunk at this place does not keep."""


class CutMask:
    """A layer that is cut: entries above a code stay, and of those that equal it all but the first few."""

    def __init__(self, cut: Cut, step: int, stopped: Event) -> None:
        self.cut = cut
        self.step = step
        self._turnstile = Turnstile(cut.drop, stopped)

    def apply(self, entries: Tensor, place: int) -> None:
        """Set to zero in place what the chunk at this place does not keep."""
        form, code = FORMATS[entries.dtype], self.cut.code
        integers, searching = entries.view(form.bits), not self._turnstile.exhausted
        if code == 0 and not searching:
            return
        (room, compared), (flags,) = _rooms.of(form.bits, 2), _rooms.of(torch.bool, 1)
        equals, start = [np.empty(0, np.intp)], 0
        for part in torch.split(integers, AT_ONCE):
            n = len(part)
            codes = torch.bitwise_and(part, form.code_mask, out=room[:n])
            if searching:  # comparisons that give booleans take three times as long as those that give integers
                flags[:n].copy_(torch.eq(codes, code, out=compared[:n]))
                equals.append(np.flatnonzero(flags[:n].numpy()) + start)
            part.mul_(torch.ge(codes, code, out=compared[:n]))
            start += n
        if searching:
            places = np.concatenate(equals)
            integers.numpy()[places[: self._turnstile.take(place, len(places))]] = 0


class _Rooms(threading.local):
    """Each thread's buffers, used again for every chunk."""

    def __init__(self) -> None:
        self.by_dtype: dict[torch.dtype, Tensor] = {}

    def of(self, dtype: torch.dtype, count: int) -> list[Tensor]:
        """So many buffers of a dtype, whatever is in them."""
        found = self.by_dtype.get(dtype)
        if found is None:
            with torch.inference_mode(False):
                found = self.by_dtype[dtype] = torch.empty(count, AT_ONCE, dtype=dtype, device="cpu")
        return list(found.unbind())


_rooms = _Rooms()


@dataclass(frozen=True)
class PatternMask:
    """A layer whose mask follows from one slab of its first axis after the other."""

    step: int
    shape: tuple[int, ...]
    select: Callable[[Tensor, int], Tensor]

    def apply(self, entries: Tensor, place: int) -> None:
        """Set to zero in place what the chunk at this place does not keep."""
        rest = self.shape[1:]
        slab = entries.view(-1, *rest) if self.shape else entries
        cpu.erase(Run(entries, self.select(slab, place)))


def pattern_mask(region: Region, budget: int, pattern: str, chunk: int) -> PatternMask:
    """The mask of a layer by a pattern, in slabs that it can be selected in one by one.

    "N:M" needs groups of M inputs together: whole rows of outputs, or M rows of inputs where these come first. "row"
    needs whole rows of outputs; where inputs come first, these are all of the layer.
    """
    groups, axis, rows = parse_pattern(pattern), region.output_axis, max(region.shape[0], 1)
    width = region.size // rows
    unit = 1 if axis == 0 else (rows if groups is None else groups[1])
    if len(region.shape) == 1:
        unit = 1
    fitting = max(min(chunk, _PATTERN_CHUNK) // max(width * region.dtype.itemsize, 1), 1)
    slab = max(fitting // unit, 1) * unit
    if groups is not None:
        return PatternMask(slab * width, region.shape, lambda part, _: select_groups(part, None, *groups, axis))
    if axis == 1:
        return PatternMask(slab * width, region.shape, lambda part, _: select_rows(part, None, budget, axis))
    counts = np.cumsum([0, *row_counts([width] * region.shape[0], budget)])

    def select(part: Tensor, place: int) -> Tensor:
        first = place * slab
        return select_rows(part, None, int(counts[first + len(part)] - counts[first]), axis)

    return PatternMask(slab * width, region.shape, select)
