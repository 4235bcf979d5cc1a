"""What `prune` and `allocate` are asked: the layers, what ranks their weights, and how many to keep."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lamplighter.constraints import checked_fraction
from lamplighter.errors import LamplighterError
from lamplighter.masks import Masks
from lamplighter.memory import check_apart, check_memory
from lamplighter.reading import Tensors
from lamplighter.scores import importances
from lamplighter.spectra import Spectra
from lamplighter.targets import Layer

Score = str | Callable[[str, Tensor, Any], Tensor]


@dataclass(frozen=True, eq=False)
class Problem:
    """What is asked: layers with their weights, what ranks them, and how many to keep."""

    weights: list[tuple[Layer, Tensor]]
    source: Tensors
    spectra: Spectra
    keep: int

    @property
    def layers(self) -> list[Layer]:
        """The layers, in their order."""
        return [layer for layer, _ in self.weights]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each layer's weight."""
        return {layer.name: tuple(weight.shape) for layer, weight in self.weights}

    @property
    def sizes(self) -> dict[str, int]:
        """How many weights each layer has."""
        return {layer.name: weight.numel() for layer, weight in self.weights}


def pose(
    layers: list[Layer],
    sparsity: float,
    score: Score,
    evidence: Any,  # noqa: ANN401
    masks: Masks | None,
) -> Problem:
    """Check the request and take the first reading; an error if more is to be kept than is alive."""
    removed = checked_fraction(sparsity, "sparsity")
    if masks is not None:
        if not isinstance(masks, Masks):
            raise LamplighterError(f"masks is a {type(masks).__name__}, expected Masks", "wrap it: ll.Masks(...)")
        masks.check_layers(layers)
    weights = [(layer, layer.weight) for layer in layers]
    for layer, weight in weights:
        check_memory(layer.name, weight)
    check_apart(weights)
    scores = importances(score, layers, evidence)
    tensors = {layer.name: weight if score == "magnitude" else scores[layer.name] for layer, weight in weights}
    alive = {} if masks is None else {n: bits.to(tensors[n].device) for n, bits in masks.packed.items()}
    source = Tensors(tensors, alive)
    spectra = Spectra(source)
    total = sum(weight.numel() for _, weight in weights)
    keep = total - round(removed * total)
    living = sum(spectrum.size for spectrum in spectra.values())
    if keep > living:
        raise LamplighterError(
            f"sparsity {sparsity} keeps {keep:,} of {total:,} weights, but only {living:,} are still alive",
            f"weights pruned earlier do not come back: ask for a sparsity of at least {1 - living / total!r}",
        )
    return Problem(weights, source, spectra, keep)
