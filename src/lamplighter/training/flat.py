"""Parameters laid end to end in a few flat tensors, so that one kernel updates them all.

For each parameter there is a *leaf*, the tensor that the network computes with and that gradients are taken for. With
bf16, leaves of matrices and convolutions are kept in bf16 beside their fp32 masters, so that no step has to cast them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

# Each parameter begins at a multiple of this many entries, which the matrix units' wide loads need.
_ALIGNMENT = 64
# With fewer kept entries than this they are listed: most of what a memory access brings along would be pruned.
_FEW = 0.06


@dataclass(frozen=True, eq=False)
class Flat:
    """Parameters computed with in one dtype. Every tensor stays in place for as long as the object lives.

    Args:
        master: the values, fp32.
        working: the values that are computed with; the same tensor if they are fp32 as well.
        gradient: of `working`, in its dtype.
        first: running mean of the gradient, or momentum.
        second: running mean of its square.
        kept: which entries may differ from zero; None if all may.
        places: where these entries are, in order, if they are few; else None.
        places_of_each: the same for each parameter.
        shapes: of the parameters.
        offsets: where each begins.
    """

    master: Tensor
    working: Tensor
    gradient: Tensor
    first: Tensor
    second: Tensor
    kept: Tensor | None
    places: Tensor | None
    places_of_each: tuple[Tensor | None, ...]
    shapes: tuple[torch.Size, ...]
    offsets: tuple[int, ...]

    def views(self, flat: Tensor) -> list[Tensor]:
        """The part of each parameter in one of the flat tensors, in the parameter's shape."""
        return [view(flat, offset, shape) for offset, shape in zip(self.offsets, self.shapes, strict=True)]

    @torch.no_grad()
    def load(self, values: Sequence[Tensor]) -> None:
        """Take on new values, pruned entries as zero, and forget what the optimizer has accumulated."""
        for place, value in zip(self.views(self.master), values, strict=True):
            place.copy_(value)
        if self.kept is not None:
            self.master.masked_fill_(~self.kept, 0)
        if self.working is not self.master:
            self.working.copy_(self.master)
        self.first.zero_()
        self.second.zero_()
        self.gradient.zero_()

    @torch.no_grad()
    def take(self, gradients: Sequence[Tensor | None]) -> None:
        """Copy the gradients of the leaves into place, all in one go."""
        places = self.views(self.gradient)
        pairs = [(place, given) for place, given in zip(places, gradients, strict=True) if given is not None]
        torch._foreach_copy_([place for place, _ in pairs], [given for _, given in pairs])


def lay_out(values: Sequence[Tensor], kept: Sequence[Tensor | None], dtype: torch.dtype) -> Flat:
    """Flat tensors that hold `values`, which share a device; `kept` is True where a value may differ from zero."""
    offsets = []
    end = 0
    for value in values:
        offsets.append(end)
        end += -(-value.numel() // _ALIGNMENT) * _ALIGNMENT
    device = values[0].device
    master, first, second = (torch.zeros(end, device=device) for _ in range(3))
    working = master if dtype == torch.float32 else torch.zeros(end, dtype=dtype, device=device)
    mask = None
    if any(entries is not None and not entries.all() for entries in kept):
        mask = torch.zeros(end, dtype=torch.bool, device=device)
    shapes = tuple(value.shape for value in values)
    if mask is not None:
        for offset, shape, entries in zip(offsets, shapes, kept, strict=True):
            view(mask, offset, shape).copy_(torch.ones((), dtype=torch.bool) if entries is None else entries)
    places, each = _places(mask, offsets)
    state = (master, working, torch.zeros_like(working), first, second)
    flat = Flat(*state, mask, places, each, shapes, tuple(offsets))
    flat.load(values)
    return flat


def _places(kept: Tensor | None, offsets: Sequence[int]) -> tuple[Tensor | None, tuple[Tensor | None, ...]]:
    """Where the kept entries are, if they are few: all together, and those from each offset to the next."""
    if kept is None or len(kept) >= 2**31 or int(kept.sum()) > _FEW * len(kept):
        return None, (None,) * len(offsets)
    places = kept.nonzero().view(-1).int()
    bounds = torch.tensor([*offsets, len(kept)], dtype=torch.int32, device=kept.device)
    ends = torch.searchsorted(places, bounds).tolist()
    return places, tuple(places[begin:end] for begin, end in pairwise(ends))


def view(flat: Tensor, offset: int, shape: Sequence[int]) -> Tensor:
    """A parameter's part of a flat tensor; kernels lie with their input channels innermost (channels-last)."""
    part = flat[offset : offset + prod(shape)]
    if len(shape) < 4:
        return part.view(torch.Size(shape))
    *outer, inputs, height, width = shape
    return part.view(*outer, height, width, inputs).movedim(-1, -3)
