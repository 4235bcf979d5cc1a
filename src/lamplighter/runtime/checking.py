"""Whether a network makes sense: looked at before any address of it is handed to the kernels."""

from math import prod
from typing import NamedTuple

import numpy as np

from lamplighter.errors import LamplighterError
from lamplighter.runtime.network import Conv, Mean, Network, Node, Pair, Pool, Shape

LONGEST = 2**20  # of any one dimension
LARGEST = 2**31  # numbers in all values together
HEAVIEST = 2**40  # places for weights in a layer


def check(network: Network) -> None:
    """An error unless every node reads what is there, and makes what its value's shape says."""
    if not network.shapes or not 0 <= network.result < len(network.shapes):
        raise _wrong("the result", "is none of its values")
    for shape in network.shapes:
        _sizes("a value", shape)
    _sizes("the input", network.input_shape)
    _sizes("the output", network.output_shape)
    _ends("the input", network.input_shape, network.shapes[0], network.images)
    _ends("the output", network.output_shape, network.shapes[network.result], network.images)
    if sum(prod(shape) for shape in network.shapes) * network.images > LARGEST:
        raise _wrong("the network", "takes more memory than any real one")
    made = {0}
    for node in network.nodes:
        _check_node(network, node, made)
        made.add(node.y)
    if network.result not in made:
        raise _wrong("the result", "is made by none of its nodes")


def _check_node(network: Network, node: Node, made: set[int]) -> None:
    what = node.name if isinstance(node, Conv) else type(node).__name__.lower()
    if node.x not in made or not 0 < node.y < len(network.shapes) or node.y in made:
        raise _wrong(what, f"reads value {node.x} and makes value {node.y}, which cannot be")
    x, y = network.shapes[node.x], network.shapes[node.y]
    if isinstance(node, Conv):
        _check_conv(what, node, x, y)
        if node.add is not None and (node.add not in made or network.shapes[node.add] != y):
            raise _wrong(what, f"adds value {node.add}, which is not there or of another shape")
    elif isinstance(node, Pool):
        _check_window(what, _Window(node.kernel, node.stride, node.pad, (1, 1)), x, y)
        if x[0] != y[0] or any(2 * pad > kernel for pad, kernel in zip(node.pad, node.kernel, strict=True)):
            raise _wrong(what, f"makes {y} of {x}")
    elif isinstance(node, Mean) and y != (x[0], 1, 1):
        raise _wrong(what, f"makes {y} of {x}")


def _check_conv(what: str, node: Conv, x: Shape, y: Shape) -> None:
    outputs, inputs, height, width = node.weight.shape
    _sizes(what, (*node.weight.shape, node.groups))
    _check_window(what, _Window((height, width), node.stride, node.pad, node.dilation), x, y)
    if outputs != y[0] or inputs * node.groups != x[0] or outputs % node.groups or node.bias.shape != (outputs,):
        raise _wrong(
            what, f"has a weight of shape {node.weight.shape}, a bias of {node.bias.shape}, and makes {y} of {x}"
        )
    indices, size = node.weight.indices, prod(node.weight.shape)
    if size > HEAVIEST or indices.ndim != 1 or indices.shape != node.weight.values.shape:
        raise _wrong(what, f"has {node.weight.values.size} weights in {size} places")
    if indices.size and (indices[0] < 0 or indices[-1] >= size or np.any(np.diff(indices) <= 0)):
        raise _wrong(what, "has weights outside its shape, or in no order")


class _Window(NamedTuple):
    """What a convolution or a pool looks at for each output."""

    kernel: Pair
    stride: Pair
    pad: Pair
    dilation: Pair


def _check_window(what: str, window: _Window, x: Shape, y: Shape) -> None:
    _sizes(what, (*window.kernel, *window.stride, *window.dilation))
    for axis in (0, 1):
        reach, pad = window.dilation[axis] * (window.kernel[axis] - 1), window.pad[axis]
        # A pad longer than the kernel would make results of padding alone, and planes of any size.
        room = x[1 + axis] + 2 * pad - reach - 1
        if not 0 <= pad <= max(reach, 1) or room < 0 or room // window.stride[axis] + 1 != y[1 + axis]:
            raise _wrong(what, f"makes {y} of {x} with {window}")


def _sizes(what: str, sizes: tuple[int, ...]) -> None:
    if not all(1 <= size <= LONGEST for size in sizes):
        raise _wrong(what, f"has the sizes {sizes}, expected 1 to {LONGEST:,}")


def _ends(what: str, shape: tuple[int, ...], value: Shape, images: int) -> None:
    if len(shape) < 2 or shape[0] != images or prod(shape[1:]) != prod(value):
        raise _wrong(what, f"has shape {shape}, but each image {value}")


def _wrong(what: str, why: str) -> LamplighterError:
    return LamplighterError(f"this is no network that can run: {what} {why}", "the file or the model is damaged")
