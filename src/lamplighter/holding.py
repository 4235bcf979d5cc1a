"""Holding pruned weights at zero while an optimizer trains the rest."""

from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from lamplighter.errors import LamplighterError
from lamplighter.parts import Part, Parts, memory_of
from lamplighter.targets import Layer


@dataclass(frozen=True, eq=False)
class Held:
    """What holds one parameter: its pruned entries, the hook on its gradient, and the hold it is part of."""

    dead: Tensor
    handle: RemovableHandle
    hold: "ref[Hold]"


# Every parameter is held once: a later hold takes it over from an earlier one.
_held: MutableMapping[Tensor, Held] = WeakIdKeyDictionary()


class Hold:
    """The hooks that keep some weights of the parameters of one or more optimizers at zero.

    Gradients are masked as they are accumulated, so that whatever looks at them before the step (clipping, a factored
    second moment, an orthogonalised momentum) sees those of the pruned network; weights are masked after the step, for
    what moves a weight without a gradient (momentum gathered before, weight decay).
    """

    def __init__(
        self,
        mask_here: Callable[[str], Tensor],
        layers: Mapping[str, Layer],
        parts: Parts,
        optimizers: Sequence[Optimizer],
    ) -> None:
        pruned = _pruned(mask_here, layers, parts)
        _check_owned(pruned, layers, optimizers)
        for parameter, dead in pruned:
            if parameter in _held:
                release(parameter)
            if parameter.grad is not None:
                memory_of(parameter.grad).masked_fill_(dead, 0)
            _held[parameter] = Held(dead, _on_gradient(parameter, _mask_gradient(dead)), ref(self))
        self.parameters = [parameter for parameter, _ in pruned]
        self._handles = [optimizer.register_step_post_hook(_mask_weights(self)) for optimizer in optimizers]
        self.mask_weights()  # they may have moved since they were pruned

    def mask_weights(self) -> None:
        """Set the pruned weights to zero."""
        with torch.no_grad():
            for parameter in self.parameters:
                memory = memory_of(parameter)
                memory.masked_fill_(_held[parameter].dead.to(memory.device), 0)

    def remove(self) -> None:
        """Take all hooks away, but for those of parameters that a later hold has taken over."""
        for parameter in list(self.parameters):
            release(parameter)

    def drop(self, parameter: Tensor) -> None:
        """Hold this parameter no more, and nothing on the optimizers once none is left."""
        self.parameters = [each for each in self.parameters if each is not parameter]
        if not self.parameters:
            for handle in self._handles:
                handle.remove()


def release(parameter: Tensor) -> None:
    """Let a held parameter go."""
    held = _held.pop(parameter)
    held.handle.remove()
    hold = held.hold()
    if hold is not None:
        hold.drop(parameter)


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


def _pruned(
    mask_here: Callable[[str], Tensor], layers: Mapping[str, Layer], parts: Parts
) -> list[tuple[Tensor, Tensor]]:
    """Each parameter with the boolean tensor of its pruned weights, as far as these lie in this process."""
    by_parameter: dict[int, list[tuple[str, Layer]]] = defaultdict(list)
    for name, layer in layers.items():
        by_parameter[id(layer.parameter)].append((name, layer))
    pruned = []
    for named in by_parameter.values():
        parameter = named[0][1].parameter
        dead = torch.zeros_like(memory_of(parameter), dtype=torch.bool, requires_grad=False)
        for name, layer in named:
            place = _place_of(layer, parts.get(name), dead)
            place.copy_(~mask_here(name).to(dead.device))
        pruned.append((parameter, dead))
    return pruned


def _place_of(layer: Layer, part: Part | None, dead: Tensor) -> Tensor:
    """Where a layer stands in a tensor shaped as its parameter, or as what lies here of it."""
    if part is not None:
        return part.place_in(dead)
    return dead if layer.expert is None else dead[layer.expert]


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
            gradient = memory_of(parameter.grad)
            gradient.masked_fill_(dead.to(gradient.device), 0)

    return hook


def _mask_weights(hold: Hold) -> Callable[..., None]:
    def hook(*_: object) -> None:
        hold.mask_weights()

    return hook
