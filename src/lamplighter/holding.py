"""Holding pruned weights at zero while an optimizer trains the rest."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lamplighter.errors import LamplighterError
from lamplighter.targets import Layer

# One hold for each optimizer: a later one replaces it.
_held: "WeakKeyDictionary[Optimizer, Hold]" = WeakKeyDictionary()


class Hold:
    """The hooks that keep some weights of an optimizer's parameters at zero.

    Gradients are masked as they are accumulated, so that whatever looks at them before the step (clipping, a factored
    second moment, an orthogonalised momentum) sees those of the pruned network; weights are masked after the step, for
    what moves a weight without a gradient (momentum gathered before, weight decay).
    """

    def __init__(self, masks: Mapping[str, Tensor], layers: Mapping[str, Layer], optimizer: Optimizer) -> None:
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
        pruned = _pruned(masks, layers)
        foreign = [
            n for n, layer in layers.items() if layer.parameter.requires_grad and id(layer.parameter) not in owned
        ]
        if foreign or not any(id(p) in owned for p, _ in pruned):
            raise LamplighterError(
                f"the optimizer does not train {', '.join(foreign[:3] or list(layers)[:3])}",
                "hold the masks on the optimizer that was made of this model's parameters",
            )
        previous = _held.get(optimizer)
        if previous is not None:
            previous.remove()
        self._handles: list[RemovableHandle] = []
        for parameter, dead in pruned:
            if parameter.grad is not None:
                parameter.grad.masked_fill_(dead, 0)
            self._handles.append(_on_gradient(parameter, _mask_gradient(dead)))
        self._handles.append(optimizer.register_step_post_hook(_mask_weights(pruned)))
        _held[optimizer] = self

    def remove(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _pruned(masks: Mapping[str, Tensor], layers: Mapping[str, Layer]) -> list[tuple[Tensor, Tensor]]:
    """Each parameter with the boolean tensor of its pruned weights."""
    by_parameter: dict[int, list[tuple[str, Layer]]] = defaultdict(list)
    for name, layer in layers.items():
        by_parameter[id(layer.parameter)].append((name, layer))
    pruned = []
    for parts in by_parameter.values():
        parameter = parts[0][1].parameter
        dead = torch.zeros_like(parameter, dtype=torch.bool, requires_grad=False)
        for name, layer in parts:
            place = dead if layer.expert is None else dead[layer.expert]
            place.copy_(~masks[name].to(dead.device))
        pruned.append((parameter, dead))
    return pruned


def _on_gradient(parameter: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Run a hook whenever a gradient was accumulated; for frozen parameters too, that may be trained later."""
    frozen = not parameter.requires_grad
    if frozen:
        parameter.requires_grad_(True)  # torch takes no hook otherwise
    try:
        handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        return handle
    finally:
        if frozen:
            parameter.requires_grad_(False)


def _mask_gradient(dead: Tensor) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad.masked_fill_(dead.to(parameter.grad.device), 0)

    return hook


def _mask_weights(pruned: list[tuple[Tensor, Tensor]]) -> Callable[..., None]:
    def hook(*_: object) -> None:
        with torch.no_grad():
            for parameter, dead in pruned:
                parameter.masked_fill_(dead.to(parameter.device), 0)

    return hook
