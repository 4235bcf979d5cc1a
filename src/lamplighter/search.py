"""Finding the `keep` best entries of all layers from spectra: bounds from floats first, whole numbers at the cut.

Every ranking here is by a *rank key*: the smaller, the sooner an entry is kept. Within a layer keys grow from the
largest magnitude down. For LAMP the key is 1 / score = E / m^2 + j (the j-th entry of magnitude m, with energy E above
it); for `global` it is -m. A bin of the spectrum is then a *stretch*: an arithmetic progression of keys.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from lamplighter.formats import Floats, Ints
from lamplighter.spectra import Spectra, Window
from lamplighter.spectrum import Spectrum

# Beyond every rounding error of the float64 sums here and in the kernels, relative to a key.
MARGIN = 1e-10
# So many bins' bounds, of all layers together, are kept in memory.
REMEMBERED = 1 << 18
# So many neighbouring bins are first looked at as one.
GROUP = 32
# Squares below this may have lost digits to underflow.
TINY = 2.0**-960


@dataclass(frozen=True, eq=False)
class Stretch:
    """Bounds on the rank keys of consecutive entries of one layer, bin by bin, from the largest magnitude down.

    The first entry of a bin has a key in [low, high]; each further one adds between `low_step` and `high_step`.
    """

    low: Floats
    low_step: Floats
    high: Floats
    high_step: Floats
    counts: Ints

    @property
    def ends(self) -> Floats:
        """Bounds above the last key of each bin."""
        ends: Floats = self.high + (self.counts - 1) * self.high_step
        return ends

    def between(self, first: int, last: int) -> "Stretch":
        """The entries after the `first` best up to the `last` best."""
        ends = np.cumsum(self.counts, dtype=np.int64)
        if first == 0 and (len(ends) == 0 or last >= ends[-1]):
            return self
        starts = ends - self.counts
        skip = np.clip(first - starts, 0, self.counts)
        counts = np.clip(last - starts, 0, self.counts) - skip
        some = counts > 0
        low, high = self.low + skip * self.low_step, self.high + skip * self.high_step
        return Stretch(low[some], self.low_step[some], high[some], self.high_step[some], counts[some])


def lamp_stretch(spectrum: Spectrum, energy: float) -> Stretch:
    """Bounds on E / m^2 + j.

    The j-th entry of a bin [lo, hi], with energy between E_lo and E_hi above the bin, has j - 1 entries of the bin
    above it, none smaller than itself: E_lo / hi^2 + j <= key <= E_hi / lo^2 + 1 + (j - 1) (hi / lo)^2.
    """
    counts = spectrum.counts[::-1].astype(np.int64)
    low, high = spectrum.low[::-1], spectrum.high[::-1]
    if spectrum.form.width == 64 and len(high):
        exponent = -int(np.frexp(high[0])[1])
        low, high = np.ldexp(low, exponent), np.ldexp(high, exponent)
    low_squared, high_squared = low * low, high * high
    above_low = energy + _exclusive_sum(counts * low_squared)
    above_high = energy + _exclusive_sum(counts * high_squared)
    first = (above_low / np.maximum(high_squared, TINY) + 1.0) * (1 - MARGIN)
    known = low_squared > TINY  # below, squares have lost their digits: all that is sure of the key is that it is huge
    low_squared = np.where(known, low_squared, 1.0)
    last = np.where(known, (above_high / low_squared + 1.0) * (1 + MARGIN), np.inf)
    step = np.where(known, high_squared / low_squared, 1.0) * (1 + MARGIN)
    return Stretch(first, np.full(len(low), 1 - MARGIN), last, step, counts)


def magnitude_stretch(spectrum: Spectrum, energy: float) -> Stretch:  # noqa: ARG001  (the same signature for all)
    """Bounds on -m."""
    counts = spectrum.counts[::-1].astype(np.int64)
    flat = np.zeros(len(counts))
    return Stretch(-spectrum.high[::-1], flat, -spectrum.low[::-1], flat, counts)


def keep_best(spectra: Spectra, keep: int, ranking: "Ranking") -> dict[str, int]:
    """How many entries of each layer are among the `keep` best of all, within the bounds that `spectra` carries.

    Zeros have the worst rank of all; of those, and of equals in general, earlier layers keep first.
    """
    budgets = {name: floor for name, (floor, _) in spectra.bounds.items()}
    most = {n: max(budgets[n], min(cap, spectra[n].nonzero)) for n, (_, cap) in spectra.bounds.items()}
    if keep >= sum(most.values()):
        return _fill_with_zeros(most, {n: cap for n, (_, cap) in spectra.bounds.items()}, keep)
    sure, maybe = _narrow(_first_look(spectra, ranking, budgets, most), budgets, most, keep)
    open_layers = _undecided(sure, maybe, keep)
    coarse = {n: ranks for n, ranks in open_layers.items() if spectra[n].shift}
    if coarse:
        windows = spectra.refine(_bins(spectra, coarse), energy=ranking.needs_energy)

        @functools.cache
        def closer_look(name: str) -> Stretch:
            window = windows.get(name) or Window(0, 0.0, 0, spectra[name])
            first, last = open_layers[name]
            stretch = ranking.stretch(window.spectrum, window.energy)
            return stretch.between(first - window.above, last - window.above)

        sure, maybe = _narrow(closer_look, sure, maybe, keep)
        open_layers = _undecided(sure, maybe, keep)
    if open_layers:
        return sure | ranking.settle(spectra, open_layers, keep - sum(sure.values()))
    return sure if sum(sure.values()) == keep else maybe


def _first_look(
    spectra: Spectra, ranking: "Ranking", floors: Mapping[str, int], caps: Mapping[str, int]
) -> Callable[[str], Stretch]:
    """The layers' stretches by name: remembered where that takes little memory, else computed when asked for."""

    def look(name: str) -> Stretch:
        return ranking.stretch(spectra[name], 0.0).between(floors[name], caps[name])

    small = sum(len(s.keys) for s in spectra.values()) < REMEMBERED
    return functools.cache(look) if small else look


def _undecided(sure: Mapping[str, int], maybe: Mapping[str, int], keep: int) -> dict[str, tuple[int, int]]:
    """The layers whose budget is still open, and from where to where; none if one end of all fits `keep`."""
    if keep in (sum(sure.values()), sum(maybe.values())):
        return {}
    return {n: (sure[n], maybe[n]) for n in sure if sure[n] < maybe[n]}


def _fill_with_zeros(budgets: dict[str, int], caps: Mapping[str, int], keep: int) -> dict[str, int]:
    left = keep - sum(budgets.values())
    for name, budget in budgets.items():
        more = min(left, caps[name] - budget)
        budgets[name] += more
        left -= more
    return budgets


def _bins(spectra: Spectra, ranks: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """The bins, first and last by index, that hold the entries after one rank up to another."""
    bins = {}
    for name, (first, last) in ranks.items():
        ends = np.cumsum(spectra[name].counts[::-1], dtype=np.int64)
        top = len(ends) - 1 - int(np.searchsorted(ends, first + 1))
        bins[name] = (len(ends) - 1 - int(np.searchsorted(ends, last)), top)
    return bins


def _narrow(
    stretches: Callable[[str], Stretch], sure: Mapping[str, int], maybe: Mapping[str, int], keep: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Per layer, how many entries are surely among the best, and how many may be: closer than was known before.

    Only the layers with sure < maybe are looked at, one at a time: of each, no more than a few bins stay in memory.
    """
    need = keep - sum(sure.values())
    names = [n for n in sure if sure[n] < maybe[n]]
    if need == 0 or not names:
        return dict(sure), dict(sure) if need == 0 else dict(maybe)
    starts, ends, sizes = (np.concatenate(part) for part in zip(*(_outline(stretches(n)) for n in names), strict=True))
    least, most = _weighted_kth(starts, sizes, need), _weighted_kth(ends, sizes, need)
    done, parts = zip(*(_near(stretches(n), least, most) for n in names), strict=True)
    live = Stretch(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Stretch)))
    need -= sum(done)
    least = _kth(live.low, live.low_step, live.counts, need)
    most = _kth(live.high, live.high_step, live.counts, need)
    owners = np.repeat(np.arange(len(names)), [len(p.counts) for p in parts])
    below = _per_layer(owners, _count(live.high, live.high_step, live.counts, np.nextafter(least, -np.inf)), len(names))
    within = _per_layer(owners, _count(live.low, live.low_step, live.counts, most), len(names))
    closer = {n: sure[n] + d + b for n, d, b in zip(names, done, below, strict=True)}
    farther = {n: sure[n] + d + w for n, d, w in zip(names, done, within, strict=True)}
    return {**sure, **closer}, {**maybe, **farther}


def _outline(stretch: Stretch) -> tuple[Floats, Floats, Ints]:
    """Groups of neighbouring bins: a bound below all their keys, a bound above, and how many there are."""
    firsts = np.arange(0, len(stretch.counts), GROUP)
    lasts = np.minimum(firsts + GROUP, len(stretch.counts)) - 1
    return stretch.low[firsts], stretch.ends[lasts], np.add.reduceat(stretch.counts, firsts)


def _near(stretch: Stretch, least: float, most: float) -> tuple[int, Stretch]:
    """How many entries have keys below `least` for sure, and the bins that reach between `least` and `most`."""
    first = int(np.searchsorted(stretch.ends, least))
    last = max(first, int(np.searchsorted(stretch.low, most, side="right")))
    part = slice(first, last)
    bins = Stretch(*(getattr(stretch, f.name)[part].copy() for f in fields(Stretch)))
    return int(stretch.counts[:first].sum()), bins


def _per_layer(owners: Ints, counts: Ints, layers: int) -> list[int]:
    sums = np.zeros(layers, dtype=np.int64)
    np.add.at(sums, owners, counts)
    return sums.tolist()


def _count(start: Floats, step: Floats, counts: Ints, x: float) -> Ints:
    """How many keys of each progression are at most x."""
    with np.errstate(divide="ignore", invalid="ignore"):
        passed = np.floor((x - start) / step) + 1.0
    passed = np.where(start <= x, np.fmin(passed, counts), 0.0)  # fmin: where 0/0 or inf/inf, all are
    return np.where(start + step * (counts - 1) <= x, counts, passed).astype(np.int64)


def _kth(start: Floats, step: Floats, counts: Ints, k: int) -> float:
    """The k-th smallest key of all progressions, by bisection over the floats themselves."""
    end = start + step * (counts - 1)
    low, high = _place(float(start.min())) - 1, _place(float(end.max()))
    ends = np.sort(end)
    while high - low > 1:
        # As long as some end lies between, the median of those; then halves of the interval, which ends in 64 steps.
        first, last = np.searchsorted(ends, [_float_at(low), _float_at(high)], side="right")
        middle = _place(float(ends[(first + last) // 2])) if last - first > 1 else (low + high) // 2
        if not low < middle < high:
            middle = (low + high) // 2
        x = _float_at(middle)
        if _count(start, step, counts, x).sum() >= k:
            high, live = middle, start <= x
        else:
            low, live = middle, end > x
            k -= int(counts[~live].sum())
        start, step, counts, end = start[live], step[live], counts[live], end[live]
    return _float_at(high)


def _weighted_kth(values: Floats, weights: Ints, k: int) -> float:
    order = np.argsort(values)
    return float(values[order[np.searchsorted(np.cumsum(weights[order]), k)]])


def _place(x: float) -> int:
    """Where a float stands in the order of all floats."""
    place = int(np.float64(x).view(np.int64))
    return place if place >= 0 else -(place & 0x7FFF_FFFF_FFFF_FFFF)


def _float_at(place: int) -> float:
    return float(np.int64(abs(place)).view(np.float64)) * (1.0 if place >= 0 else -1.0)


def _exclusive_sum(values: Floats) -> Floats:
    total = np.zeros_like(values)
    np.cumsum(values[:-1], out=total[1:])
    return total


@dataclass(frozen=True)
class Ranking:
    """An order over all entries, given by bounds for the search and by exact arithmetic at the cut."""

    stretch: Callable[[Spectrum, float], Stretch]
    settle: Callable[[Spectra, Mapping[str, tuple[int, int]], int], dict[str, int]]
    needs_energy: bool
