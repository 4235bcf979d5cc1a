"""Returning a model to an earlier state of its own."""

import torch
from torch import Tensor, nn

from lamplighter.errors import LamplighterError


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter and buffer, also of buffers that `state_dict` leaves out.

    >>> list(snapshot(nn.BatchNorm1d(2)))
    ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
    """
    return {name: tensor.detach().clone() for name, tensor in _state(model).items()}


def restore(model: nn.Module, saved: dict[str, Tensor]) -> None:
    """Return every parameter and buffer to its value in a snapshot, in place: optimizers keep their parameters.

    >>> model = nn.Linear(1, 1)
    >>> saved = snapshot(model)
    >>> _ = model.weight.data.fill_(7.0)
    >>> restore(model, saved)
    >>> bool(model.weight == saved["weight"])
    True
    """
    state = _state(model)
    for name, value in saved.items():
        if name not in state or state[name].shape != value.shape:
            found = f"has shape {tuple(state[name].shape)}" if name in state else "is gone"
            raise LamplighterError(
                f"cannot rewind: {name!r} had shape {tuple(value.shape)}, now it {found}",
                "the model must keep its parameters and buffers from the rewind point on",
            )
    with torch.no_grad():
        for name, value in saved.items():
            # An unchanged buffer may be one that cannot be written to, such as an expanded range of positions.
            if not torch.equal(state[name], value.to(state[name].device)):
                state[name].copy_(value)


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
