"""A network as the runtime sees it: convolutions, pools and means between values, with nothing of torch left in it.

A linear layer is a convolution whose kernel is as large as its input. An addition, a ReLU or a batch norm that no
convolution could take in is a convolution of its own with one weight for each channel.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from lamplighter.runtime.operation import Floats

Shape = tuple[int, int, int]  # channels, rows, columns
Pair = tuple[int, int]


@dataclass(frozen=True)
class Sparse:
    """A weight by what is in it.

    Args:
        shape: outputs, inputs (of one group), kernel rows and columns.
        indices: where the nonzeros are, in row-major order, ascending.
        values: the nonzeros.
    """

    shape: tuple[int, int, int, int]
    indices: NDArray[np.int64]
    values: Floats

    @property
    def density(self) -> float:
        """The fraction that is not zero."""
        return self.indices.size / max(prod(self.shape), 1)


@dataclass(frozen=True)
class Conv:
    """`y = relu(weight * x + bias + add)`, as far as it has these parts.

    Args:
        name: of the layer, for messages.
        x: the value it reads.
        y: the value it makes.
        weight: its weight.
        bias: one for each output.
        stride: between outputs, down and along.
        pad: rows and columns of zeros around the input.
        dilation: between the kernel's rows and columns.
        groups: how many groups of channels are separate.
        add: another value of the result's shape.
        relu: whether negative results become 0.
    """

    name: str
    x: int
    y: int
    weight: Sparse
    bias: Floats
    stride: Pair = (1, 1)
    pad: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    add: int | None = None
    relu: bool = False


@dataclass(frozen=True)
class Pool:
    """The maximum or the mean of each window."""

    x: int
    y: int
    kernel: Pair
    stride: Pair
    pad: Pair
    average: bool


@dataclass(frozen=True)
class Mean:
    """The mean over each channel's image."""

    x: int
    y: int


Node = Conv | Pool | Mean


@dataclass(frozen=True)
class Network:
    """Nodes in the order in which they can be carried out.

    Args:
        input_shape: of the whole input, images first.
        output_shape: of the whole output, images first.
        shapes: of each value, for one image; value 0 is the input.
        nodes: what makes the other values.
        result: the value that is the output.
    """

    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    shapes: tuple[Shape, ...]
    nodes: tuple[Node, ...]
    result: int

    @property
    def images(self) -> int:
        """How many images it takes at once."""
        return self.input_shape[0]


def multiply_adds(network: Network, node: Conv) -> tuple[int, int]:
    """For one image: what the weights left would take, and what all weights would. Padding counts as work."""
    positions = prod(network.shapes[node.y][1:])
    return positions * node.weight.indices.size, positions * prod(node.weight.shape)
