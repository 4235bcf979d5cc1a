"""Weights that cannot be set one by one: their entries share memory, within a layer or with another."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor

from lamplighter.errors import LamplighterError
from lamplighter.naming import natural_key
from lamplighter.targets import Layer

_MOST_WORK = 1_000_000  # what numpy may try before it gives up on telling whether two strided arrays overlap


def check_memory(name: str, weight: Tensor) -> None:
    """An error for weights that cannot be set one by one."""
    extent = 1  # how many places the dimensions with smaller strides cover
    for stride, size in sorted(zip(weight.stride(), weight.shape, strict=True)):
        if size < 2 or weight.numel() == 0:
            continue
        if stride < extent:
            how = "an expanded tensor" if stride == 0 else f"shape {tuple(weight.shape)}, strides {weight.stride()}"
            raise LamplighterError(f"entries of {name} share memory ({how})", "pass a copy: tensor.clone()")
        extent += (size - 1) * stride


def check_apart(weights: list[tuple[Layer, Tensor]]) -> None:
    """An error for two layers that share entries: each would count them, and their masks could contradict each other.

    Walking up the addresses, a layer is compared with those that begin before it and end after its beginning: in an
    ordinary model none does. Experts of one parameter are never compared, since its entries lie apart.
    """
    spans = [(weight.device, *_span(weight), layer, weight) for layer, weight in weights if weight.numel()]
    spans.sort(key=lambda span: (str(span[0]), span[1]))
    open_spans: list[tuple[Any, int, int, Layer, Tensor]] = []
    for span in spans:
        device, start, _, layer, weight = span
        open_spans = [other for other in open_spans if other[0] == device and other[2] > start]
        for *_, other_layer, other in open_spans:
            if other_layer.parameter is not layer.parameter and _share_entries(other, weight):
                first, second = sorted((other_layer.name, layer.name), key=natural_key)
                raise LamplighterError(
                    f"layers {first} and {second} share memory: some of their entries are the same numbers",
                    f"leave one out with exclude={second!r} (what is pruned in the other is then zero in both), or "
                    "give it memory of its own: tensor.clone()",
                )
        open_spans.append(span)


def _span(weight: Tensor) -> tuple[int, int]:
    """The addresses between which a weight lies."""
    last = sum((size - 1) * stride for size, stride in zip(weight.shape, weight.stride(), strict=True))
    return weight.data_ptr(), weight.data_ptr() + (last + 1) * weight.element_size()


def _share_entries(one: Tensor, other: Tensor) -> bool:
    """Whether two weights that lie between the same addresses have entries in common, or merely alternate."""
    try:
        return np.shares_memory(_places(one), _places(other), max_work=_MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:  # strides so odd that only trying them out would tell
        return False


def _places(weight: Tensor) -> np.ndarray[Any, Any]:
    """A numpy array that stands for a weight's addresses, on any device; nothing at them is ever read."""
    size = weight.element_size()
    strides = tuple(stride * size for stride in weight.stride())
    interface = {"shape": tuple(weight.shape), "strides": strides, "typestr": f"|V{size}", "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=interface | {"data": (weight.data_ptr(), True)}))
