# ruff: noqa: ANN001, N803, PLR0917
# mypy: disable-error-code="import-untyped,import-not-found,untyped-decorator,misc,no-untyped-def"
"""One step of AdamW, Adam or SGD on flat parameters, the same arithmetic as in `update`, as one CUDA kernel.

Gradient, mask, moments, master and the bf16 copy are each read or written once. Entries that are pruned are skipped
altogether, so that the sparser the network, the less memory moves.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lamplighter.training.flat import Flat
from lamplighter.training.update import BETA1, BETA2, EPSILON, Rule

_BLOCK = 1024


@triton.jit
def _kernel(
    master,
    working,
    gradient,
    first,
    second,
    kept,
    rows,
    step,
    scale,
    count,
    decay,
    momentum,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPSILON: tl.constexpr,
    MASKED: tl.constexpr,
    COPIED: tl.constexpr,
    OPTIMIZER: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    alive = place < count
    if MASKED:
        alive = alive & (tl.load(kept + place, mask=alive, other=0) != 0)
    row = tl.load(step) * 3
    size = tl.load(rows + row)
    g = tl.load(gradient + place, mask=alive, other=0.0).to(tl.float32) * tl.load(scale)
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
    count = flat.master.numel()
    _kernel[(triton.cdiv(count, _BLOCK),)](
        flat.master,
        flat.working,
        flat.gradient,
        flat.first,
        flat.second,
        flat.master if flat.kept is None else flat.kept.view(torch.uint8),
        rows,
        step,
        scale,
        count,
        rule.weight_decay,
        rule.momentum,
        BETA1=BETA1,
        BETA2=BETA2,
        EPSILON=EPSILON,
        MASKED=flat.kept is not None,
        COPIED=flat.working is not flat.master,
        OPTIMIZER=rule.optimizer,
        BLOCK=_BLOCK,
    )
