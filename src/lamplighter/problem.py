"""What `prune` and `allocate` are asked: the layers, what ranks their weights, and how many to keep."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from torch import Tensor

from lamplighter.constraints import checked_fraction
from lamplighter.errors import LamplighterError
from lamplighter.masks import Masks
from lamplighter.memory import check_apart, check_memory
from lamplighter.parts import Parts, part_of, weight_here
from lamplighter.ranks import Alone, Ranks
from lamplighter.reading import Tensors
from lamplighter.scores import importances
from lamplighter.spectra import Spectra
from lamplighter.targets import Layer

Score = str | Callable[[str, Tensor, Any], Tensor]


@dataclass(frozen=True, eq=False)
class Problem:
    """What is asked: layers with their weights, what ranks them, and how many to keep.

    Of a layer that lies in several processes, `weights` and `source` hold what `parts` says lies in this one; spectra
    and everything counted are of whole layers.
    """

    weights: list[tuple[Layer, Tensor]]
    source: Tensors
    spectra: Spectra
    keep: int
    parts: Parts = field(default_factory=dict)
    ranks: Ranks = field(default_factory=Alone)

    @property
    def layers(self) -> list[Layer]:
        """The layers, in their order."""
        return [layer for layer, _ in self.weights]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each layer's weight."""
        return {layer.name: layer.shape for layer, _ in self.weights}

    @property
    def sizes(self) -> dict[str, int]:
        """How many weights each layer has."""
        return {name: prod(shape) for name, shape in self.shapes.items()}


def pose(
    layers: list[Layer],
    sparsity: float,
    score: Score,
    *,
    evidence: Any,  # noqa: ANN401
    masks: Masks | None,
    ranks: Ranks,
) -> Problem:
    """Check the request and take the first reading; an error if more is to be kept than is alive."""
    with ranks.together():
        removed = checked_fraction(sparsity, "sparsity")
        if masks is not None and not isinstance(masks, Masks):
            raise LamplighterError(f"masks is a {type(masks).__name__}, expected Masks", "wrap it: ll.Masks(...)")
        parts = {layer.name: part for layer in layers if (part := part_of(layer)) is not None}
        weights = [(layer, weight_here(layer, parts.get(layer.name))) for layer in layers]
        for layer, weight in weights:
            check_memory(layer.name, weight)
        check_apart(weights)
        scores = importances(score, layers, evidence)
        tensors = {layer.name: weight if score == "magnitude" else scores[layer.name] for layer, weight in weights}
        alive = {} if masks is None else masks.bits_here(layers)
        source = ranks.source(tensors, alive, parts)
    spectra = Spectra(source)
    total = sum(prod(layer.shape) for layer in layers)
    keep = total - round(removed * total)
    living = sum(spectrum.size for spectrum in spectra.values())
    if keep > living:
        raise LamplighterError(
            f"sparsity {sparsity} keeps {keep:,} of {total:,} weights, but only {living:,} are still alive",
            f"weights pruned earlier do not come back: ask for a sparsity of at least {1 - living / total!r}",
        )
    return Problem(weights, source, spectra, keep, parts, ranks)
