"""Which entries of a network must stay zero while it trains."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lamplighter.errors import LamplighterError
from lamplighter.naming import closest


class Pruned(NamedTuple):
    """A parameter and where it is pruned."""

    parameter: nn.Parameter
    entries: Tensor


def kept_entries(model: nn.Module, masks: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """The masks by parameter name, checked, on the parameters' device."""
    if masks is None:
        return {}
    parameters = dict(model.named_parameters())
    kept = {}
    for name in masks:
        if name not in parameters:
            raise LamplighterError(f"there is a mask for {name}, but no such parameter", closest(name, parameters))
        mask, parameter = masks[name], parameters[name]
        if mask.dtype != torch.bool or mask.shape != parameter.shape:
            given = f"{mask.dtype} of shape {tuple(mask.shape)}"
            raise LamplighterError(f"{name}: the mask is {given}, expected torch.bool of {tuple(parameter.shape)}")
        kept[name] = mask.to(parameter.device)
    return kept


def find_pruned(model: nn.Module, masks: Mapping[str, Tensor] | None) -> list[Pruned]:
    """The parameters that have pruned entries."""
    parameters = dict(model.named_parameters())
    return [Pruned(parameters[name], ~kept) for name, kept in kept_entries(model, masks).items() if not kept.all()]


@torch.no_grad()
def zero_weights(pruned: Iterable[Pruned]) -> None:
    """Set pruned weights to +0."""
    for parameter, entries in pruned:
        parameter.masked_fill_(entries, 0)


@torch.no_grad()
def zero_gradients(pruned: Iterable[Pruned]) -> None:
    """Set the gradients of pruned weights to 0, infinite and undefined ones too, which a product would not."""
    for parameter, entries in pruned:
        if parameter.grad is not None:
            parameter.grad.masked_fill_(entries, 0)
