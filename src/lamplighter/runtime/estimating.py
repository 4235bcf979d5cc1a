"""What a compiled network may be expected to gain, before anything is trained: the multiply-adds that are left."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from lamplighter.errors import LamplighterError
from lamplighter.runtime.network import Conv, multiply_adds
from lamplighter.runtime.tracing import exported, trace

# Seconds of a weight that is left, beside those of a weight in the best dense runtimes.
COST = 2.5


@dataclass(frozen=True)
class Layer:
    """One convolution or linear layer.

    Args:
        name: of its weight.
        weights: how many it has.
        kept: how many of them are left.
        work: multiply-adds of the dense layer, for one image.
        left: those of the weights that are left.
    """

    name: str
    weights: int
    kept: int
    work: int
    left: float


@dataclass(frozen=True)
class Estimate:
    """All layers of a network, in order."""

    layers: tuple[Layer, ...]

    @property
    def density(self) -> float:
        """The fraction of the multiply-adds that is left."""
        return sum(layer.left for layer in self.layers) / max(sum(layer.work for layer in self.layers), 1)

    @property
    def speedup(self) -> float:
        """How many times as fast as the best dense runtime, roughly: 1 / (2.5 density), by a rule of thumb."""
        return 1 / (COST * max(self.density, 1e-6))


def estimate(model: nn.Module, example: Tensor, budgets: Mapping[str, int] | None = None) -> Estimate:
    """The multiply-adds left of a model.

    Args:
        model: any that `compile` takes.
        example: an input.
        budgets: how many weights each layer will keep, as `ll.allocate` says; those that are not zero now if None.
    """
    network = trace(exported(model, example))
    layers = []
    for node in network.nodes:
        if not isinstance(node, Conv) or node.name in ("copy", "pad", "sample", "batch norm"):
            continue
        left, work = multiply_adds(network, node)
        weights = work // max(_positions(network.shapes[node.y]), 1)
        kept = node.weight.indices.size if budgets is None else budgets.get(node.name, weights)
        if not 0 <= kept <= weights:
            raise LamplighterError(f"{node.name} has {weights} weights, so it cannot keep {kept}")
        layers.append(Layer(node.name, weights, kept, work, left if budgets is None else work * kept / weights))
    return Estimate(tuple(layers))


def _positions(shape: tuple[int, int, int]) -> int:
    return shape[1] * shape[2]
