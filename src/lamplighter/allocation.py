"""Budgets: how many weights each layer keeps.

A method is a function `(spectra, shapes, keep) -> {layer: budget}`; to add one, write it and name it in METHODS.
`spectra.bounds` says how few and how many entries each layer may keep.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from numbers import Rational, Real

from lamplighter.errors import LamplighterError
from lamplighter.naming import listed
from lamplighter.search import Ranking, keep_best, lamp_stretch, magnitude_stretch
from lamplighter.spectra import Spectra
from lamplighter.ties import settle_equals, settle_lamp

Budgets = dict[str, int]
Share = float | Fraction  # or any other real number
Shapes = Mapping[str, Sequence[int]]
Method = Callable[[Spectra, Shapes, int], Mapping[str, int]]


def lamp(spectra: Spectra, shapes: Shapes, keep: int) -> Budgets:  # noqa: ARG001
    """Layer-adaptive magnitudes: the entries with the largest scores of Eq. 1 in the paper.

    score(u) = w_u^2 / sum of w_v^2 over the entries v of the layer that are not smaller (ties by index).
    """
    return keep_best(spectra, keep, Ranking(lamp_stretch, settle_lamp, needs_energy=True))


def global_magnitude(spectra: Spectra, shapes: Shapes, keep: int) -> Budgets:  # noqa: ARG001
    """The entries with the largest |w| of the whole model, not normalised."""
    return keep_best(spectra, keep, Ranking(magnitude_stretch, settle_equals, needs_energy=False))


def uniform(spectra: Spectra, shapes: Shapes, keep: int) -> Budgets:
    """The same density in every layer."""
    return proportional({n: math.prod(shapes[n]) for n in spectra}, spectra.bounds, keep)


def uniform_plus(spectra: Spectra, shapes: Shapes, keep: int) -> Budgets:
    """Uniform, but the first convolution stays dense and the last matrix keeps at least 20 % (Gale et al., 2019).

    The first weight with three or more dimensions, the last with two; without such a layer no such constraint.
    """
    bounds = dict(spectra.bounds)
    first = next((n for n in spectra if len(shapes[n]) >= 3), None)
    last = next((n for n in reversed(list(spectra)) if len(shapes[n]) == 2), None)
    if first is not None:
        bounds[first] = (bounds[first][1], bounds[first][1])
    if last is not None:
        floor, cap = bounds[last]
        bounds[last] = (max(floor, min(cap, math.ceil(Fraction(math.prod(shapes[last]), 5)))), cap)
    check_bounds(bounds, keep, "with what uniform+ asks (the first convolution dense, 20 % of the last matrix)")
    return proportional({n: math.prod(shapes[n]) for n in spectra}, bounds, keep)


def er(spectra: Spectra, shapes: Shapes, keep: int) -> Budgets:
    """Erdos-Renyi: density proportional to (n_in + n_out) / (n_in n_out), kernels ignored (Mocanu et al., 2018)."""
    return proportional({n: _er_weight(shapes[n]) for n in spectra}, spectra.bounds, keep)


def erk(spectra: Spectra, shapes: Shapes, keep: int) -> Budgets:
    """Erdos-Renyi kernel: density proportional to sum(shape) / prod(shape) (Evci et al., 2020)."""
    return proportional({n: sum(shapes[n]) for n in spectra}, spectra.bounds, keep)


METHODS: dict[str, Method] = {
    "lamp": lamp,
    "global": global_magnitude,
    "uniform": uniform,
    "uniform+": uniform_plus,
    "er": er,
    "erk": erk,
}


def _er_weight(shape: Sequence[int]) -> int:
    n_out, n_in = (*shape, 1, 1)[:2]
    return (n_in + n_out) * math.prod(shape[2:])


def proportional(weights: Mapping[str, Share], bounds: Mapping[str, tuple[int, int]], keep: int) -> Budgets:
    """Budgets proportional to `weights`, within bounds: those that would pass a bound stay at it, the rest share.

    Where all layers with a share are at their upper bound and weights are left, those without a share take them, in
    proportion to their room (upper less lower bound). The ideal is rational and exact, of fractions and floats too; it
    is rounded by largest remainder, ties to the earlier layer, so that every budget is within 1 of it.

    >>> proportional({"a": 1, "b": 3}, {"a": (0, 10), "b": (0, 5)}, 9)
    {'a': 4, 'b': 5}
    >>> proportional({"a": 0, "b": 0.5}, {"a": (0, 10), "b": (0, 5)}, 9)
    {'a': 4, 'b': 5}
    """
    check_bounds(bounds, keep, "with the bounds of the layers")
    ideals = _ideals(_exact(weights, bounds), bounds, keep)
    budgets = {n: math.floor(ideal) for n, ideal in ideals.items()}
    remainders = sorted(budgets, key=lambda n: budgets[n] - ideals[n])
    for name in remainders[: keep - sum(budgets.values())]:
        budgets[name] += 1
    return budgets


def _exact(shares: Mapping[str, Share], bounds: Mapping[str, tuple[int, int]]) -> dict[str, Fraction]:
    """The shares as fractions; an error if one is no finite number from 0 up, or they are not of the bounded layers."""
    if shares.keys() != bounds.keys():
        odd = [str(name) for name in (*shares, *bounds) if (name in shares) != (name in bounds)]
        raise LamplighterError(f"shares and bounds are not of the same layers: {listed(odd)}", "give each layer both")
    exact = {}
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, Real) or not 0 <= share < math.inf:
            raise LamplighterError(
                f"the share of {name} is {share!r}, expected a finite number from 0 up", "a share of 0 comes last"
            )
        whole = isinstance(share, Rational)
        exact[name] = Fraction(int(share.numerator), int(share.denominator)) if whole else Fraction(float(share))
    return exact


def _ideals(shares: Mapping[str, Fraction], bounds: Mapping[str, tuple[int, int]], keep: int) -> dict[str, Fraction]:
    """The exact budgets, not yet whole, that sum to `keep`."""
    scale = _scale(shares, bounds, keep)
    ideals = {n: _clamped(share * scale, *bounds[n]) for n, share in shares.items()}
    left = keep - sum(ideals.values())
    if left:  # all layers with a share are full
        rooms = {n: bounds[n][1] - bounds[n][0] for n, share in shares.items() if not share}
        total = sum(rooms.values())
        ideals |= {n: bounds[n][0] + left * Fraction(room, total) for n, room in rooms.items()}
    return ideals


def _clamped(ideal: Fraction, floor: int, cap: int) -> Fraction:
    return min(max(ideal, Fraction(floor)), Fraction(cap))


def _scale(shares: Mapping[str, Fraction], bounds: Mapping[str, tuple[int, int]], keep: int) -> Fraction:
    """The factor at which the clamped shares sum to `keep`, or to as much as those above 0 can hold.

    Their sum is piecewise linear in it.
    """
    turns = sorted({b / share for n, share in shares.items() if share for b in bounds[n]})

    def total(scale: Fraction) -> Fraction:
        return sum((_clamped(share * scale, *bounds[n]) for n, share in shares.items()), Fraction(0))

    below, above = 0, len(turns) - 1
    if not turns or total(turns[0]) >= keep:
        return turns[0] if turns else Fraction(0)
    if total(turns[above]) <= keep:
        return turns[above]
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if total(turns[middle]) <= keep else (below, middle)
    start, end = total(turns[below]), total(turns[above])
    return turns[below] + (turns[above] - turns[below]) * (keep - start) / (end - start)


def check_order(bounds: Mapping[str, tuple[int, int]]) -> None:
    """An error if a layer's lower bound is above its upper bound."""
    crossed = next(((n, b) for n, b in bounds.items() if b[0] > b[1]), None)
    if crossed:
        name, (floor, cap) = crossed
        raise LamplighterError(
            f"{name} should keep at least {floor:,} and at most {cap:,} weights: {floor - cap:,} weights too many",
            "lower its min_density or its fixed density, or raise its max_density (weights pruned earlier do not come "
            "back)",
        )


def check_bounds(bounds: Mapping[str, tuple[int, int]], keep: int, what: str) -> None:
    """An error if no budgets within the bounds sum to `keep`."""
    check_order(bounds)
    least, most = sum(floor for floor, _ in bounds.values()), sum(cap for _, cap in bounds.values())
    if least > keep:
        raise LamplighterError(
            f"{what}: at least {least:,} stay, {least - keep:,} weights more than the {keep:,} to keep",
            "lower the sparsity, or what layers must keep",
        )
    if most < keep:
        raise LamplighterError(
            f"{what}: at most {most:,} can stay, {keep - most:,} weights fewer than the {keep:,} to keep",
            "raise the sparsity, or what layers may keep",
        )
