"""Exact checks of budgets and masks at sizes that brute force cannot reach.

Which weights the largest scores belong to needs no search once someone claims an answer: budgets are right if and only
if the least score that was kept ranks above the greatest that was not. That takes one exact comparison per layer.
"""

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from torch import Tensor

import oracles


def exact_energy(values: np.ndarray) -> Fraction:
    """The sum of squares of float64 values without rounding: integer significands, summed per exponent."""
    significands, exponents = np.frexp(np.abs(values))
    order = np.argsort(exponents, kind="stable")
    whole = (significands[order] * 2.0**53).astype(np.uint64)
    exponents = exponents[order]
    starts = np.flatnonzero(np.diff(exponents, prepend=exponents[:1] - 1)) if len(exponents) else np.array([], int)
    high, low, word = whole >> np.uint64(32), whole & np.uint64(2**32 - 1), np.uint64(32)
    total = Fraction(0)
    # (high 2^32 + low)^2; each product is cut in two so that a sum of 2^31 of them still fits into 64 bits.
    for product, scale in ((high * high, 64), (high * low, 33), (low * low, 0)):
        for part, shift in ((product >> word, 32), (product & np.uint64(2**32 - 1), 0)):
            for exponent, units in zip(exponents[starts], np.add.reduceat(part, starts), strict=True):
                total += int(units) * Fraction(2) ** (scale + shift + 2 * (int(exponent) - 53))
    return total


def magnitudes(importance: Tensor, alive: Tensor | None) -> np.ndarray:
    """Absolute values of what is alive, ascending."""
    values = importance.detach().double().abs()
    values = values.flatten() if alive is None else values[alive]
    return np.sort(values.numpy())


def edges(values: np.ndarray, count: int, method: str) -> tuple[Fraction | None, Fraction | None]:
    """The least score kept and the greatest score pruned when the `count` largest of `values` stay."""
    kept, pruned = values[len(values) - count :], values[: len(values) - count]
    energy = exact_energy(kept) if method == "lamp" else Fraction(0)

    def score(magnitude: float, surviving: Fraction) -> Fraction:
        square = Fraction(magnitude) ** 2
        return square if method == "global" else square / surviving if surviving else Fraction(0)

    least = score(float(kept[0]), energy) if len(kept) else None
    greatest = score(float(pruned[-1]), energy + Fraction(float(pruned[-1])) ** 2) if len(pruned) else None
    return least, greatest


def assert_budgets(
    importances: Mapping[str, Tensor],
    counts: Mapping[str, int],
    keep: int,
    method: str,
    alive: Mapping[str, Tensor] | None = None,
) -> None:
    """`counts` are the lamp or global budgets: nothing pruned outranks anything kept in another layer."""
    names = oracles.natural(importances)
    assert list(counts) == names
    assert sum(counts.values()) == keep
    kept, pruned = [], []
    for place, name in enumerate(names):
        values = magnitudes(importances[name], alive and alive[name])
        assert 0 <= counts[name] <= len(values)
        least, greatest = edges(values, counts[name], method)
        kept += [] if least is None else [(least, -place)]
        pruned += [] if greatest is None else [(greatest, -place)]
    for low in kept:
        for high in pruned:
            assert low > high or low[1] == high[1], (
                f"{names[-low[1]]} keeps a score of {float(low[0]):.17g} while "
                f"{names[-high[1]]} loses one of {float(high[0]):.17g}"
            )


def top_entries(importance: Tensor, count: int, alive: Tensor | None = None) -> np.ndarray:
    """A boolean array, flat: the `count` largest of what is alive, of equal ones the higher index."""
    values = importance.detach().double().abs().flatten().numpy()
    flags = np.ones(len(values), bool) if alive is None else alive.flatten().numpy()
    places = np.flatnonzero(flags)
    order = places[np.argsort(values[places], kind="stable")]
    mask = np.zeros(len(values), bool)
    mask[order[len(order) - count :]] = True
    return mask
