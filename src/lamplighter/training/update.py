"""One step of AdamW, Adam or SGD on flat parameters: the arithmetic, in PyTorch's own operations.

What changes from step to step stands in a table of one row per step, computed beforehand in double precision, so that
a recorded step needs nothing from the host.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lamplighter.training.flat import Flat
from lamplighter.training.settings import Settings, learning_rate

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Rule(NamedTuple):
    """What stays the same from step to step."""

    optimizer: str
    weight_decay: float
    momentum: float


def rule(settings: Settings) -> Rule:
    """The rule of a phase of training."""
    return Rule(settings.optimizer, settings.weight_decay, settings.momentum)


def table(settings: Settings, device: torch.device) -> Tensor:
    """One row per step, (steps, 3) in float32.

    For AdamW and Adam: lr / (1 - beta1^t), sqrt(1 - beta2^t), and the factor of the weights, 1 - lr * weight_decay for
    AdamW and 1 for Adam; for SGD: lr, 1, 1.
    """
    rows = []
    for step in range(settings.steps):
        lr = learning_rate(settings, step)
        if settings.optimizer == "sgd":
            rows.append((lr, 1.0, 1.0))
            continue
        shrink = 1 - lr * settings.weight_decay if settings.optimizer == "adamw" else 1.0
        rows.append((lr / (1 - BETA1 ** (step + 1)), math.sqrt(1 - BETA2 ** (step + 1)), shrink))
    return torch.tensor(rows, dtype=torch.float32, device=device).view(-1, 3)


@torch.no_grad()
def update(flat: Flat, rule: Rule, rows: Tensor, step: Tensor, scale: Tensor) -> None:
    """Update the parameters in place by their gradients.

    Args:
        flat: the parameters.
        rule: what stays the same.
        rows: the table.
        step: which row, shape (1,).
        scale: factor of all gradients, shape (1,).
    """
    size, root, shrink = rows.index_select(0, step).squeeze(0).unbind()
    gradient = flat.gradient.float() * scale
    if flat.kept is not None:
        gradient = gradient.masked_fill(~flat.kept, 0)
    if rule.optimizer != "adamw":
        gradient = gradient + rule.weight_decay * flat.master
    if rule.optimizer == "sgd":
        flat.first.mul_(rule.momentum).add_(gradient)
        flat.master.sub_(size * flat.first)
    else:
        flat.first.lerp_(gradient, 1 - BETA1)
        flat.second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        flat.master.mul_(shrink).sub_(size * flat.first / (flat.second.sqrt() / root + EPSILON))
    if flat.working is not flat.master:
        flat.working.copy_(flat.master)


def update_from(  # noqa: PLR0917
    flat: Flat, gradients: Sequence[Tensor | None], rule: Rule, rows: Tensor, step: Tensor, scale: Tensor
) -> None:
    """The same by the gradients of the leaves."""
    flat.take(gradients)
    update(flat, rule, rows, step, scale)


@torch.no_grad()
def clipping(flats: list[Flat], largest: float) -> Tensor:
    """The factor, shape (1,), that brings the norm of all kept gradients together down to `largest`, or 1."""
    squares = []
    for flat in flats:
        gradient = flat.gradient.float()
        squares.append((gradient if flat.kept is None else gradient.masked_fill(~flat.kept, 0)).square().sum())
    norm = torch.stack(squares).sum().sqrt()
    return (largest / (norm + 1e-6)).clamp(max=1.0).view(1)
