"""Scores of layers that lie in several processes: those that look at each weight by itself, where it lies."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from lamplighter.distributed.parts import Part, part_of
from lamplighter.errors import LamplighterError
from lamplighter.parts import memory_of
from lamplighter.scores import SCORES, checked, find_score, random_at, seed_of, user_function
from lamplighter.targets import Layer

CHUNK = 1 << 18


def importance(score: str | Callable[..., Any], layer: Layer, evidence: Any) -> Tensor:  # noqa: ANN401
    """The importance of what lies here of a layer.

    A function of the user's own is given the distributed weight, a copy, and returns one laid out alike: so what it
    asks of the whole layer, such as a mean, torch computes over all processes.
    """
    part = part_of(layer)
    here = Layer(layer.name, part.take(layer.parameter), output_axis=layer.output_axis)
    if score == "magnitude":
        return here.weight
    if score == "random":
        return checked(_random(here, part, seed_of(evidence)), here, "random")
    if isinstance(score, str) and score in SCORES:
        return find_score(score)(here, {layer.name: _evidence_here(layer, part, evidence)})
    return _by_user(score, layer, here, part, evidence)


def _random(here: Layer, part: Part, seed: int) -> Tensor:
    """The same numbers as for the whole layer: they depend on the index in it."""
    result = torch.empty(here.weight.shape, dtype=torch.float32, device=here.weight.device)
    flat = result.view(-1)
    for start in range(0, flat.numel(), CHUNK):
        stop = min(start + CHUNK, flat.numel())
        places = torch.from_numpy(part.indices(start, stop)).to(flat.device)
        flat[start:stop] = random_at(here.name, places, seed)
    return result


def _evidence_here(layer: Layer, part: Part, evidence: Any) -> Any:  # noqa: ANN401
    """What evidence says of what lies here: it may be distributed as the weight is, or of the whole layer."""
    if not isinstance(evidence, Mapping):
        return None
    found = evidence.get(layer.name)
    stacked = found is None and layer.expert is not None
    if stacked:
        found = evidence.get(layer.parameter_name)
    if isinstance(found, DTensor):
        if found.placements != part.placements or found.device_mesh != part.mesh:
            found = found.redistribute(part.mesh, part.placements)
        local = memory_of(found)
        return part.place_in(local) if stacked else local
    if not isinstance(found, Tensor):
        return found
    if stacked and found.shape == layer.parameter.shape:
        assert layer.expert is not None
        found = found[layer.expert]
    try:
        return part.pick(found.detach().expand(part.whole))
    except RuntimeError:
        return found  # the score says what is wrong with it


def _by_user(
    score: str | Callable[..., Any],
    layer: Layer,
    here: Layer,
    part: Part,
    evidence: Any,  # noqa: ANN401
) -> Tensor:
    if layer.expert is not None:
        raise LamplighterError(
            f"{layer.name} is an expert of a stack that lies in several processes, of which functions of one's own "
            "cannot be given the weights",
            f"leave these out with exclude={layer.parameter_name!r}, or use a built-in score",
        )
    function, label = user_function(score)
    found = function(layer.name, layer.parameter.detach().clone(), evidence)
    if not isinstance(found, DTensor) or tuple(found.placements) != part.placements:
        laid_out = (
            f"a DTensor placed as {found.placements}" if isinstance(found, DTensor) else f"a {type(found).__name__}"
        )
        raise LamplighterError(
            f"score {label!r}, layer {layer.name!r}: the importance is {laid_out}, expected a DTensor placed as the "
            f"weight is, {part.placements}",
            "compute it from the weight entry by entry, or redistribute what comes out",
        )
    return checked(found.to_local(), here, label)
