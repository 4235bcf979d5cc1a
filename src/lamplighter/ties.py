"""What floats cannot tell apart: the last few entries at the cut, settled in whole numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lamplighter.formats import whole
from lamplighter.spectra import Spectra


@dataclass(frozen=True)
class Progression:
    """Entries of one magnitude m in one layer: `count` of them, with rank keys (E + j m^2) / m^2 for j from `first`."""

    layer: str
    energy: int
    square: int
    first: int
    count: int

    def key(self, place: int) -> Fraction:
        """The rank key of one of the entries."""
        return Fraction(self.energy, self.square) + self.first + place

    def up_to(self, key: Fraction, *, strictly: bool) -> int:
        """How many of the entries have a key of at most (or below) this one."""
        top = key.numerator * self.square - self.energy * key.denominator - strictly
        j = top // (key.denominator * self.square)
        return min(max(j - self.first + 1, 0), self.count)


def settle_equals(spectra: Spectra, ranks: Mapping[str, tuple[int, int]], need: int) -> dict[str, int]:  # noqa: ARG001
    """Of entries that are all exactly equal, the earlier layers keep first."""
    budgets = {}
    for name, (sure, maybe) in ranks.items():
        more = min(need, maybe - sure)
        budgets[name] = sure + more
        need -= more
    return budgets


def settle_lamp(spectra: Spectra, ranks: Mapping[str, tuple[int, int]], need: int) -> dict[str, int]:
    """The `need` smallest exact keys E / m^2 + j among the layers' open ranks."""
    progressions = _progressions(spectra, ranks)
    budgets = {name: sure for name, (sure, _) in ranks.items()}
    for progression, count in zip(progressions, smallest(progressions, need), strict=True):
        budgets[progression.layer] += count
    return budgets


def smallest(progressions: list[Progression], need: int) -> list[int]:
    """How many of each progression's entries are among the `need` smallest of all; earlier ones first at equal keys."""
    low, high = [0] * len(progressions), [p.count for p in progressions]
    while True:
        pivot = _weighted_median(progressions, low, high)
        under = [p.up_to(pivot, strictly=True) for p in progressions]
        up_to = [p.up_to(pivot, strictly=False) for p in progressions]
        if sum(under) >= need:
            high = [min(h, u) for h, u in zip(high, under, strict=True)]
            if sum(under) == need:
                return under
        elif sum(up_to) >= need:
            left, counts = need - sum(under), []
            for u, t in zip(under, up_to, strict=True):
                counts.append(u + min(left, t - u))
                left -= counts[-1] - u
            return counts
        else:
            low = [max(lo, t) for lo, t in zip(low, up_to, strict=True)]


def _weighted_median(progressions: list[Progression], low: list[int], high: list[int]) -> Fraction:
    middles = sorted(
        (p.key((lo + hi) // 2), hi - lo) for p, lo, hi in zip(progressions, low, high, strict=True) if lo < hi
    )
    half, passed = sum(weight for _, weight in middles) / 2, 0
    for key, weight in middles:
        passed += weight
        if passed >= half:
            return key
    raise AssertionError("nothing is left to choose from")


def _progressions(spectra: Spectra, ranks: Mapping[str, tuple[int, int]]) -> list[Progression]:
    tops = {}
    bins = {}
    for name, (sure, maybe) in ranks.items():
        keys, counts, above = spectra.exact(name)
        ends = above + np.cumsum(counts)
        first, last = int(np.searchsorted(ends, sure + 1)), int(np.searchsorted(ends, maybe))
        begins = (ends - counts)[first : last + 1].tolist()
        bins[name] = list(zip(keys[first : last + 1].tolist(), counts[first : last + 1].tolist(), begins, strict=True))
        tops[name] = int(keys[first]) + 1
    energies = spectra.exact_energy(tops)
    progressions = []
    for name, (sure, maybe) in ranks.items():
        energy, form = energies[name], spectra[name].form
        for key, count, begin in bins[name]:
            square = whole(key, form) ** 2
            skip = max(sure - begin, 0)
            taken = min(maybe - begin, count) - skip
            progressions.append(Progression(name, energy, square, 1 + skip, taken))
            energy += count * square
    return progressions
