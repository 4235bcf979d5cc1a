# ruff: noqa: ANN001, N803, PLR0917
# mypy: disable-error-code="import-untyped,import-not-found,untyped-decorator,misc,no-untyped-def"
"""One step of AdamW, Adam or SGD on flat parameters, the same arithmetic as in `update`, as one CUDA kernel.

Gradient, mask, moments, master and the bf16 copy are each read or written once. Entries that are pruned are skipped
altogether, so that the sparser the network, the less memory moves; where few are left, a list of them is gone through.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lamplighter.training.flat import Flat
from lamplighter.training.update import BETA1, BETA2, EPSILON, Rule

_BLOCK = 1024
# Parameters with more entries than this on average are updated one by one, which saves copying their gradients.
_LARGE = 1 << 16


@triton.jit
def _kernel(
    master,
    working,
    gradient,
    first,
    second,
    kept,
    places,
    rows,
    step,
    scale,
    begin,
    count,
    decay,
    momentum,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
    MASKED: tl.constexpr,
    LISTED: tl.constexpr,
    COPIED: tl.constexpr,
    OPTIMIZER: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    alive = place < count
    if LISTED:
        place = tl.load(places + place, mask=alive, other=0)
    else:
        place += begin
        if MASKED:
            alive = alive & (tl.load(kept + place, mask=alive, other=0) != 0)
    row = tl.load(step) * 3
    size = tl.load(rows + row)
    g = tl.load(gradient + (place - begin), mask=alive, other=0.0).to(tl.float32) * tl.load(scale)
    w = tl.load(master + place, mask=alive, other=0.0)
    m = tl.load(first + place, mask=alive, other=0.0)
    if OPTIMIZER != "adamw":
        g = g + decay * w
    if OPTIMIZER == "sgd":
        m = momentum * m + g
        w = w - size * m
    else:
        v = tl.load(second + place, mask=alive, other=0.0)
        m = m + (1.0 - BETA1) * (g - m)
        v = BETA2 * v + (1.0 - BETA2) * g * g
        root = tl.load(rows + row + 1)
        w = w * tl.load(rows + row + 2) - size * m / (tl.sqrt(v) / root + EPSILON)
        tl.store(second + place, v, mask=alive)
    tl.store(first + place, m, mask=alive)
    tl.store(master + place, w, mask=alive)
    if COPIED:
        tl.store(working + place, w.to(working.dtype.element_ty), mask=alive)


def update(flat: Flat, rule: Rule, rows: Tensor, step: Tensor, scale: Tensor) -> None:
    """Update the parameters in place by their gradients; the arguments are those of `update.update`."""
    _launch(flat, flat.gradient, range(flat.master.numel()), flat.places, (rule, rows, step, scale))


def update_from(
    flat: Flat, gradients: Sequence[Tensor | None], rule: Rule, rows: Tensor, step: Tensor, scale: Tensor
) -> None:
    """The same by the gradients of the leaves, which are read where they are if the parameters are large."""
    if flat.master.numel() < _LARGE * len(flat.shapes):
        flat.take(gradients)
        update(flat, rule, rows, step, scale)
        return
    leaves = zip(flat.views(flat.gradient), gradients, flat.offsets, flat.places_of_each, strict=True)
    for place, given, offset, places in leaves:
        gradient = place
        if given is not None and given.dtype == place.dtype and given.stride() == place.stride():
            gradient = given
        elif given is not None:
            place.copy_(given)
        _launch(flat, gradient, range(offset, offset + place.numel()), places, (rule, rows, step, scale))


def _launch(
    flat: Flat, gradient: Tensor, part: range, places: Tensor | None, how: tuple[Rule, Tensor, Tensor, Tensor]
) -> None:
    """Update a part of the parameters by its gradient."""
    rule, rows, step, scale = how
    count = len(part) if places is None else len(places)
    if count == 0:
        return
    _kernel[(triton.cdiv(count, _BLOCK),)](
        flat.master,
        flat.working,
        gradient,
        flat.first,
        flat.second,
        flat.master if flat.kept is None else flat.kept.view(torch.uint8),
        flat.master if places is None else places,
        rows,
        step,
        scale,
        part.start,
        count,
        rule.weight_decay,
        rule.momentum,
        BETA1=BETA1,
        BETA2=BETA2,
        EPSILON=EPSILON,
        MASKED=flat.kept is not None,
        LISTED=places is not None,
        COPIED=flat.working is not flat.master,
        OPTIMIZER=rule.optimizer,
        BLOCK=_BLOCK,
    )
