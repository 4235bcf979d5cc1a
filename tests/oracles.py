"""Brute-force definitions in exact rational arithmetic, for small weights: what the library has to agree with."""

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor, prod

import torch
from torch import Tensor


class Infeasible(ValueError):
    """The constraints of a method cannot be met."""


def natural(names: Iterable[str]) -> list[str]:
    """Names in natural order: digits compare as numbers, so "layers.2" stands before "layers.10"."""

    def parts(name: str) -> list[tuple[int, int, str]]:
        return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]

    return sorted(names, key=parts)


def keep_of(total: int, sparsity: float) -> int:
    """How many weights stay: `torch.nn.utils.prune` rounds the number that goes."""
    return total - round(sparsity * total)


def squares(importance: Tensor) -> list[Fraction]:
    """The exact square of every entry, in logical row-major order."""
    return [Fraction(value) ** 2 for value in importance.detach().double().flatten().tolist()]


def living(importance: Tensor, alive: Tensor | None) -> list[int]:
    """Flat indices of the entries that earlier rounds left."""
    flags = [True] * importance.numel() if alive is None else alive.flatten().tolist()
    return [index for index, flag in enumerate(flags) if flag]


def index_map(importance: Tensor, alive: Tensor | None = None) -> list[int]:
    """Flat indices of what is alive, ascending by magnitude; of equal ones the lower index comes first."""
    energy = squares(importance)
    return sorted(living(importance, alive), key=lambda index: (energy[index], index))


def lamp_scores(importance: Tensor, alive: Tensor | None = None) -> dict[int, Fraction]:
    """Eq. 1: score(u) = W[u]^2 / sum over v >= u of W[v]^2, u and v places in the index map; 0 where all are 0."""
    energy, order = squares(importance), index_map(importance, alive)
    scores = {}
    for place, index in enumerate(order):
        surviving = sum((energy[v] for v in order[place:]), Fraction(0))
        scores[index] = energy[index] / surviving if surviving else Fraction(0)
    return scores


def global_scores(importance: Tensor, alive: Tensor | None = None) -> dict[int, Fraction]:
    """The plain magnitude (squared, which sorts alike)."""
    energy = squares(importance)
    return {index: energy[index] for index in living(importance, alive)}


def one_pass(scores: Mapping[str, Mapping[int, Fraction]], keep: int) -> dict[str, int]:
    """Keep the `keep` largest scores of the model; of equal ones the earlier layer's first."""
    names = natural(scores)
    ranked = sorted(
        ((score, -place) for place, name in enumerate(names) for score in scores[name].values()), reverse=True
    )
    if keep > len(ranked):
        raise Infeasible("more than is alive")
    counts = [-place for _, place in ranked[:keep]]
    return {name: counts.count(place) for place, name in enumerate(names)}


def greedy_lamp(
    weights: Mapping[str, Tensor], keep: int, alive: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Section 2.1 of the paper, masks: remove the connection whose removal distorts least, recompute, and again.

    The distortion of removing one connection is its square over the energy of what survives in its layer. Of equal
    ones the later layer loses, and within the layer the lower index.
    """
    names = natural(weights)
    energy = {name: squares(weights[name]) for name in names}
    left = {name: living(weights[name], alive and alive[name]) for name in names}
    while sum(map(len, left.values())) > keep:
        candidates = []
        for place, name in enumerate(names):
            total = sum((energy[name][index] for index in left[name]), Fraction(0))
            candidates += [
                (energy[name][index] / total if total else Fraction(0), -place, index) for index in left[name]
            ]
        _, place, index = min(candidates)
        left[names[-place]].remove(index)
    return {name: flags(weights[name], left[name]) for name in weights}


def flags(importance: Tensor, kept: Sequence[int]) -> Tensor:
    """A boolean tensor, true at the flat indices `kept`."""
    mask = torch.zeros(importance.numel(), dtype=torch.bool)
    mask[list(kept)] = True
    return mask.reshape(importance.shape)


def masks(
    importances: Mapping[str, Tensor], counts: Mapping[str, int], alive: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The top `counts` entries of each layer among those alive; of equal ones the lower index goes first."""
    result = {}
    for name, importance in importances.items():
        order = index_map(importance, alive and alive[name])
        result[name] = flags(importance, order[len(order) - counts[name] :])
    return result


def weighting(shape: Sequence[int], method: str) -> Fraction:
    """What the ideal budget of a layer is proportional to: its size times the density the method asks for."""
    size = prod(shape)
    if method in ("uniform", "uniform+") or size == 0:
        return Fraction(size)
    if method == "erk":
        return size * Fraction(sum(shape), size)
    n_out, n_in = shape[0], shape[1]
    return size * Fraction(n_in + n_out, n_in * n_out)


def level(parts: Sequence[Fraction], low: Sequence[int], high: Sequence[int], keep: int) -> list[Fraction]:
    """The ideal budgets: `low <= scale * part <= high` for the one scale at which they sum to `keep`."""
    if sum(low) > keep or sum(high) < keep:
        raise Infeasible("the bounds do not allow this total")

    def at(scale: Fraction) -> list[Fraction]:
        bounds = zip(parts, low, high, strict=True)
        return [min(max(scale * part, Fraction(least)), Fraction(most)) for part, least, most in bounds]

    edges = [(part, edge) for part, *both in zip(parts, low, high, strict=True) if part for edge in both]
    corners = sorted({Fraction(0)} | {edge / part for part, edge in edges})
    after = next(place for place, corner in enumerate(corners) if sum(at(corner)) >= keep)
    if sum(at(corners[after])) == keep:
        return at(corners[after])
    # Between two corners the total is linear in the scale.
    left, right = corners[after - 1], corners[after]
    below, above = sum(at(left)), sum(at(right))
    return at(left + (right - left) * (keep - below) / (above - below))


def rounded(ideal: Sequence[Fraction], keep: int) -> list[int]:
    """Largest remainder: all down, then one up where most was lost, ties to the earlier."""
    counts = [floor(value) for value in ideal]
    lost = sorted(range(len(ideal)), key=lambda place: (counts[place] - ideal[place], place))
    for place in lost[: keep - sum(counts)]:
        counts[place] += 1
    return counts


def shaped_budgets(
    shapes: Mapping[str, Sequence[int]], living_counts: Mapping[str, int], keep: int, method: str
) -> dict[str, int]:
    """uniform, uniform+, er and erk: ideals on original sizes, capped by what is alive, then rounded.

    The floor of uniform+ is a whole number of weights, like every bound: a fifth of the layer, rounded up; of a layer
    with less than that alive, all of it.
    """
    names = natural(shapes)
    low = dict.fromkeys(names, 0)
    if method == "uniform+":
        first = next((name for name in names if len(shapes[name]) >= 3), None)
        last = next((name for name in reversed(names) if len(shapes[name]) == 2), None)
        if first is not None:
            low[first] = living_counts[first]
        if last is not None:
            low[last] = min(ceil(Fraction(prod(shapes[last]), 5)), living_counts[last])
    parts = [weighting(shapes[name], method) for name in names]
    ideal = level(parts, [low[name] for name in names], [living_counts[name] for name in names], keep)
    return dict(zip(names, rounded(ideal, keep), strict=True))


def budgets(
    importances: Mapping[str, Tensor], keep: int, method: str, alive: Mapping[str, Tensor] | None = None
) -> dict[str, int]:
    """How many entries each layer keeps, straight from the definition of the method."""
    if method in ("lamp", "global"):
        score = {"lamp": lamp_scores, "global": global_scores}[method]
        return one_pass({name: score(value, alive and alive[name]) for name, value in importances.items()}, keep)
    counts = {name: len(living(value, alive and alive[name])) for name, value in importances.items()}
    return shaped_budgets({name: value.shape for name, value in importances.items()}, counts, keep, method)
