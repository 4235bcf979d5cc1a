"""A network while it is being written down: layers take in the batch norms, ReLUs and additions that follow them."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lamplighter.runtime.network import Conv, Mean, Network, Node, Pair, Pool, Shape, Sparse
from lamplighter.runtime.operation import Floats


class Draft:
    """Nodes in the order in which they are carried out, and the shapes of the values between them."""

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self.nodes: list[Node] = []
        self.names: dict[str, str] = {}

    def value(self, shape: Shape) -> int:
        """A new value."""
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def conv(self, name: str, x: int, weight: Tensor, bias: Tensor | None, shape: Shape, **geometry: Any) -> int:  # noqa: ANN401
        """A convolution, or a linear layer as one."""
        numbers = np.zeros(weight.shape[0], np.float32) if bias is None else _floats(bias)
        self.nodes.append(Conv(name, x, self.value(shape), sparse(weight), numbers, **geometry))
        return self.nodes[-1].y

    def pool(self, x: int, shape: Shape, geometry: Mapping[str, Any]) -> int:
        """A pool."""
        self.nodes.append(Pool(x, self.value(shape), **geometry))
        return self.nodes[-1].y

    def mean(self, x: int) -> int:
        """The mean over the image."""
        self.nodes.append(Mean(x, self.value((self.shapes[x][0], 1, 1))))
        return self.nodes[-1].y

    def scaled(self, x: int, scale: Tensor, shift: Tensor, into: bool) -> int:
        """`scale * x + shift` by channel: into the convolution that makes x, if nothing else reads that."""
        node = self._maker(x) if into else None
        if node is None or node.relu or node.add is not None:
            channels, height, width = self.shapes[x]
            weight = torch.diag(scale).reshape(channels, channels, 1, 1).float()
            return self.conv("batch norm", x, weight, shift.float(), (channels, height, width))
        factors = scale.cpu().numpy()
        rows = node.weight.indices // max(prod(node.weight.shape[1:]), 1)
        values = (node.weight.values.astype(np.float64) * factors[rows]).astype(np.float32)
        bias = (node.bias.astype(np.float64) * factors + shift.cpu().numpy()).astype(np.float32)
        return self._replaced(node, weight=replace(node.weight, values=values), bias=bias)

    def relu(self, x: int, into: bool) -> int:
        """The positive part of x."""
        node = self._maker(x) if into else None
        return self._replaced(node or self._copy(x), relu=True)

    def added(self, one: int, other: int, into: tuple[bool, bool]) -> int:
        """The sum of two values: by the convolution that makes one of them, the later one if either could."""
        for x, rest, may in sorted(((one, other, into[0]), (other, one, into[1])), reverse=True):
            node = self._maker(x) if may and x != rest else None
            if node is not None and not node.relu and node.add is None:
                return self._replaced(node, add=rest)
        return self._replaced(self._copy(one), add=other)

    def sampled(self, x: int, stride: Pair, shape: Shape) -> int:
        """Every so many rows and columns; two of these after each other are one."""
        node = self._maker(x)
        if node is not None and node.name == "sample" and not any(other.x == x for other in self.nodes):
            self.nodes.remove(node)
            x, stride = node.x, (node.stride[0] * stride[0], node.stride[1] * stride[1])
        return self.conv("sample", x, _identity(shape[0]), None, shape, stride=stride)

    def widened(self, x: int, before: int, after: int) -> int:
        """More channels, of zeros."""
        channels, height, width = self.shapes[x]
        weight = torch.zeros(before + channels + after, channels, 1, 1)
        weight[before : before + channels] = _identity(channels)
        shape, stride = (weight.shape[0], height, width), (1, 1)
        node = self._maker(x)
        if node is not None and node.name == "sample":  # as in the shortcuts of small residual networks
            self.nodes.remove(node)
            x, stride = node.x, node.stride
        return self.conv("pad", x, weight, None, shape, stride=stride)

    def network(self, input_shape: tuple[int, ...], output_shape: tuple[int, ...], result: int) -> Network:
        """What was written down, without the values that nothing makes any more."""
        used = sorted({0, *(node.y for node in self.nodes)})
        number = {value: place for place, value in enumerate(used)}
        nodes = []
        for node in self.nodes:
            changed: dict[str, Any] = {"x": number[node.x], "y": number[node.y]}
            if isinstance(node, Conv) and node.add is not None:
                changed["add"] = number[node.add]
            nodes.append(replace(node, **changed))
        shapes = tuple(self.shapes[value] for value in used)
        return Network(input_shape, output_shape, shapes, tuple(nodes), number[result])

    def _maker(self, value: int) -> Conv | None:
        made = [node for node in self.nodes if node.y == value]
        return made[0] if made and isinstance(made[0], Conv) else None

    def _copy(self, x: int) -> Conv:
        """A convolution that changes nothing yet."""
        self.conv("copy", x, _identity(self.shapes[x][0]), None, self.shapes[x])
        made = self.nodes[-1]
        assert isinstance(made, Conv)
        return made

    def _replaced(self, node: Conv, **changed: Any) -> int:  # noqa: ANN401
        """Another node in its place; last, if it now adds a value that may be made later."""
        place = self.nodes.index(node)
        del self.nodes[place]
        self.nodes.insert(len(self.nodes) if "add" in changed else place, replace(node, **changed))
        return node.y


def sparse(weight: Tensor) -> Sparse:
    """The nonzeros of a weight of a convolution or a linear layer."""
    numbers = _floats(weight)
    shape = (*numbers.shape, 1, 1)[:4]
    flat = numbers.reshape(-1)
    indices = np.flatnonzero(flat)
    return Sparse((shape[0], shape[1], shape[2], shape[3]), indices, flat[indices])


def _floats(tensor: Tensor) -> Floats:
    return np.ascontiguousarray(tensor.detach().cpu().numpy(), np.float32)


def _identity(channels: int) -> Tensor:
    return torch.eye(channels).reshape(channels, channels, 1, 1)
