"""Holding pruned weights at zero while an optimizer trains the rest."""

from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from lamplighter.errors import LamplighterError
from lamplighter.targets import Layer


@dataclass(frozen=True, eq=False)
class Held:
    """What holds one parameter: its pruned entries, and the hook on its gradient."""

    dead: Tensor
    handle: RemovableHandle


# A parameter is held once, and so is what an optimizer steps: a later hold replaces an earlier one.
_parameters: MutableMapping[Tensor, Held] = WeakIdKeyDictionary()
_optimizers: "WeakKeyDictionary[Optimizer, Hold]" = WeakKeyDictionary()


class Hold:
    """The hooks that keep some weights of the parameters of one or more optimizers at zero.

    Gradients are masked as they are accumulated, so that whatever looks at them before the step (clipping, a factored
    second moment, an orthogonalised momentum) sees those of the pruned network; weights are masked after the step, for
    what moves a weight without a gradient (momentum gathered before, weight decay).
    """

    def __init__(
        self, masks: Mapping[str, Tensor], layers: Mapping[str, Layer], optimizers: Sequence[Optimizer]
    ) -> None:
        pruned = _pruned(masks, layers)
        _check_owned(pruned, layers, optimizers)
        for previous in [_optimizers[each] for each in optimizers if each in _optimizers]:
            previous.remove()
        self._parts = [(parameter, _hold(parameter, dead)) for parameter, dead in pruned]
        self._handles = []
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_post_hook(_mask_weights(self._parts)))
            _optimizers[optimizer] = self

    def remove(self) -> None:
        """Take all hooks away, but for those of parameters that a later hold has taken over."""
        for parameter, held in self._parts:
            if _parameters.get(parameter) is held:
                held.handle.remove()
                del _parameters[parameter]
        for handle in self._handles:
            handle.remove()
        self._parts, self._handles = [], []


def _check_owned(
    pruned: list[tuple[Tensor, Tensor]], layers: Mapping[str, Layer], optimizers: Sequence[Optimizer]
) -> None:
    owned = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    foreign = [n for n, layer in layers.items() if layer.parameter.requires_grad and id(layer.parameter) not in owned]
    if foreign or not any(id(p) in owned for p, _ in pruned):
        who = "the optimizer does" if len(optimizers) == 1 else "the optimizers do"
        raise LamplighterError(
            f"{who} not train {', '.join(foreign[:3] or list(layers)[:3])}",
            "hold the masks on the optimizer that was made of this model's parameters, or on all of them together: "
            "masks.hold(one, another)",
        )


def _hold(parameter: Tensor, dead: Tensor) -> Held:
    """Put a hook on a parameter's gradient, in place of the one that an earlier hold has put there."""
    earlier = _parameters.get(parameter)
    if earlier is not None:
        earlier.handle.remove()
    if parameter.grad is not None:
        parameter.grad.masked_fill_(dead, 0)
    held = Held(dead, _on_gradient(parameter, _mask_gradient(dead)))
    _parameters[parameter] = held
    return held


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


def _mask_weights(parts: list[tuple[Tensor, Held]]) -> Callable[..., None]:
    def hook(*_: object) -> None:
        with torch.no_grad():
            for parameter, held in parts:
                if _parameters.get(parameter) is held:
                    parameter.masked_fill_(held.dead.to(parameter.device), 0)

    return hook
