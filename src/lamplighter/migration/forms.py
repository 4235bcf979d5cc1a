"""How other tools store pruned tensors: known by the names in a checkpoint, and decoded bit for bit.

- `torch.nn.utils.prune`: NAME_orig and NAME_mask; the weight is their product.
- compressed-tensors `sparse-bitmask`: MODULE.compressed (the values that are not zero, row by row), MODULE.bitmask (the
  bits of each row, the first entry lowest in the first byte, rows filled up to whole bytes), MODULE.shape, and
  MODULE.row_offsets, which the others imply. Early files write NAME where later ones write MODULE.
- compressed-tensors `sparse-24-bitmask`: the same without offsets; two of every four entries stand in `compressed`.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from lamplighter.errors import LamplighterError
from lamplighter.naming import listed

Get = Callable[[str], Tensor]

PLAIN = "plain"
PRUNE = "torch.nn.utils.prune"
BITMASK = "compressed-tensors sparse-bitmask"
BITMASK_24 = "compressed-tensors sparse-24-bitmask"

_PARTS = ("compressed", "bitmask", "shape")
_VIEWS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Form:
    """A tensor as a checkpoint stores it.

    Args:
        name: what it is called once it is dense.
        kind: who stores it so.
        parts: the stored tensors that make it up; the first has its dtype, and the bulk of its bytes.
    """

    name: str
    kind: str
    parts: tuple[str, ...]

    def shape(self, get: Get) -> tuple[int, ...]:
        """Its shape, of a form that stores it apart."""
        assert self.kind in (BITMASK, BITMASK_24)
        found = get(self.parts[2]).flatten().tolist()
        if not found or not all(isinstance(n, int) and 0 <= n < 2**63 for n in found):
            raise _damaged(self.name, f"its shape is {found}")
        return tuple(found)

    def decode(self, get: Get) -> tuple[Tensor, Tensor | None]:
        """The dense tensor, and which of its entries are kept where the checkpoint says."""
        if self.kind == PLAIN:
            return get(self.parts[0]), None
        if self.kind == PRUNE:
            weight = get(self.parts[0])
            kept = kept_by(self.name, weight, get(self.parts[1]))
            return weight.clone(memory_format=torch.contiguous_format).masked_fill_(~kept, 0), kept
        return expand(self.name, self.shape(get), get(self.parts[0]), get(self.parts[1]))


def recognise(names: Collection[str]) -> list[Form]:
    """The tensors of a checkpoint by the names in it, in the order of their first parts."""
    names = dict.fromkeys(names)
    found = [*_pruned(names), *_bitmasks(names)]
    taken = {part for form in found for part in form.parts}
    taken |= {f"{form.parts[1].removesuffix('.bitmask')}.row_offsets" for form in found if form.kind == BITMASK}
    twice = [form.name for form in found if form.name in names and form.name not in taken]
    if twice:
        raise LamplighterError(
            f"{listed(twice)}: stored both as it is and with a mask", "keep one of the two in the checkpoint"
        )
    sparse = {form.parts[0]: form for form in found}
    return [sparse.get(name, Form(name, PLAIN, (name,))) for name in names if name in sparse or name not in taken]


def _pruned(names: Collection[str]) -> Iterator[Form]:
    for name in names:
        base = name.removesuffix("_mask")
        if base != name and f"{base}_orig" in names:
            yield Form(base, PRUNE, (f"{base}_orig", name))


def _bitmasks(names: Collection[str]) -> Iterator[Form]:
    prefixes = [name.removesuffix(".bitmask") for name in names if name.endswith(".bitmask")]
    for prefix in prefixes:
        missing = [part for part in _PARTS if f"{prefix}.{part}" not in names]
        if missing:
            raise _damaged(prefix, f"there is a bitmask, but no {' and no '.join(missing)}")
    # Early versions name the tensor, later ones the module whose weight it is.
    early = any(prefix.rpartition(".")[2] == "weight" for prefix in prefixes)
    for prefix in prefixes:
        kind = BITMASK if f"{prefix}.row_offsets" in names else BITMASK_24
        yield Form(prefix if early else f"{prefix}.weight", kind, tuple(f"{prefix}.{part}" for part in _PARTS))


def kept_by(name: str, weight: Tensor, mask: Tensor) -> Tensor:
    """What a mask keeps; an error where setting the rest to zero would not be what the product with the mask is."""
    if mask.shape != weight.shape:
        raise _damaged(name, f"it has shape {tuple(weight.shape)}, its mask {tuple(mask.shape)}")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise LamplighterError(
            f"{name}: its mask holds other values than 0 and 1",
            "it scales weights; multiply them out where it was made, and keep 0 and 1",
        )
    kept = mask.to(weight.device) != 0
    if not bool((torch.isfinite(weight) | kept).all()):
        raise LamplighterError(
            f"{name}: a weight that its mask removes is NaN or infinite, and times 0 that is NaN, not 0",
            "set it to a finite value, or leave the mask out",
        )
    return kept


def expand(name: str, shape: tuple[int, ...], values: Tensor, packed: Tensor) -> tuple[Tensor, Tensor]:
    """The dense tensor and its mask, from values in row-major order and rows of bits."""
    columns, rows = shape[-1], prod(shape[:-1])
    width = (columns + 7) // 8
    if packed.dtype != torch.uint8 or packed.numel() != rows * width:
        raise _damaged(name, f"a bitmask of {packed.numel():,} bytes does not fit its shape {shape}")
    bits = np.unpackbits(packed.cpu().reshape(rows, width).numpy(), axis=-1, count=columns, bitorder="little")
    kept = torch.from_numpy(bits).view(torch.bool).reshape(shape)
    if int(kept.sum()) != values.numel():
        raise _damaged(name, f"there are {values.numel():,} values for {int(kept.sum()):,} bits")
    dense = torch.zeros(shape, dtype=values.dtype)
    view = _VIEWS[values.element_size()]  # as integers: not every dtype can be indexed, and every bit passes
    dense.view(view)[kept] = values.cpu().flatten().view(view)
    return dense, kept


def _damaged(name: str, why: str) -> LamplighterError:
    return LamplighterError(f"{name}: {why}", "the checkpoint is damaged or incomplete: fetch or write it again")
