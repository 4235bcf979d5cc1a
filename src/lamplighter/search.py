"""Finding the `keep` best entries of all layers from spectra: bounds from floats first, whole numbers at the cut.

Every ranking here is by a *rank key*: the smaller, the sooner an entry is kept. Within a layer keys grow from the
largest magnitude down. For LAMP the key is 1 / score = E / m^2 + j (the j-th entry of magnitude m, with energy E above
it); for `global` it is -m. A bin of the spectrum is then a *stretch*: an arithmetic progression of keys.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamplighter.formats import Floats, Ints, magnitudes
from lamplighter.spectra import Spectra, Window
from lamplighter.spectrum import Spectrum

# Beyond every rounding error of the float64 sums here and in the kernels, relative to a key.
MARGIN = 1e-10
# The bounds of so many bins are computed at once, and of so many, of all layers together, kept in memory.
TOGETHER = 1 << 14
REMEMBERED = 1 << 17
# So few keys are sorted out one by one.
ENUMERATED = 1 << 12
# So many neighbouring bins are first looked at as one.
GROUP = 32
# Squares below this may have lost digits to underflow.
TINY = 2.0**-960


@dataclass(frozen=True, eq=False)
class Stretch:
    """Bounds on the rank keys of consecutive entries of some layers, bin by bin, from the largest magnitude down.

    The first entry of a bin has a key in [low, high]; each further one adds between `low_step` and `high_step`. `layer`
    numbers the layers: the bins of one stand together, in order.
    """

    layer: Ints
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

    @property
    def begins(self) -> Ints:
        """Of each bin, where the bins of its layer begin."""
        begins: Ints = np.searchsorted(self.layer, np.arange(self.layer[-1] + 1))[self.layer]
        return begins

    def __getitem__(self, part: NDArray[Any]) -> "Stretch":
        """Some of the bins."""
        return Stretch(*(getattr(self, f.name)[part] for f in fields(Stretch)))

    def between(self, first: Ints, last: Ints) -> "Stretch":
        """The entries of each layer after its `first` best up to its `last` best."""
        if not first.any() and (last >= per_layer(self.layer, self.counts, len(last))).all():
            return self
        starts = np.cumsum(self.counts) - self.counts
        starts -= starts[self.begins]  # each layer counts from 0
        skip = np.clip(first[self.layer] - starts, 0, self.counts)
        counts = np.clip(last[self.layer] - starts, 0, self.counts) - skip
        low, high = self.low + skip * self.low_step, self.high + skip * self.high_step
        return Stretch(self.layer, low, self.low_step, high, self.high_step, counts)[counts > 0]


@dataclass(frozen=True, eq=False)
class Bins:
    """The bins of some layers of one format, from the largest magnitude down, and the energy above each layer's."""

    layer: Ints
    low: Floats
    high: Floats
    counts: Ints
    energy: Floats
    starts: Sequence[int]

    def energies_above(self, magnitude: Floats) -> Floats:
        """The energy above each bin of its layer, if every entry of a bin had this magnitude squared."""
        total, within = np.empty(len(self.counts)), self.counts * magnitude
        for start, stop in pairwise(self.starts):  # one sum over all layers would lose the small ones' digits
            total[start] = 0.0
            np.cumsum(within[start : stop - 1], out=total[start + 1 : stop])
        return total + self.energy[self.layer]


def bins_of(spectra: Sequence[Spectrum], energies: Sequence[float]) -> Bins:
    """The bins of spectra of one format that are not empty."""
    form, shift = spectra[0].form, spectra[0].shift
    keys = np.concatenate([s.keys[::-1].astype(np.int64) for s in spectra])
    counts = np.concatenate([s.counts[::-1].astype(np.int64) for s in spectra])
    sizes = [len(s.keys) for s in spectra]
    low = magnitudes(np.maximum(keys << shift, 1), form)
    high = magnitudes((keys << shift) + ((1 << shift) - 1), form) if shift else low
    layer = np.repeat(np.arange(len(spectra)), sizes)
    return Bins(layer, low, high, counts, np.array(energies), [0, *accumulate(sizes)])


def joined(parts: Sequence[Stretch]) -> Stretch:
    """The bins of all parts."""
    return Stretch(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Stretch)))


def lamp_stretch(spectra: Sequence[Spectrum], energies: Sequence[float]) -> Stretch:
    """Bounds on E / m^2 + j.

    The j-th entry of a bin [lo, hi], with energy between E_lo and E_hi above the bin, has j - 1 entries of the bin
    above it, none smaller than itself: E_lo / hi^2 + j <= key <= E_hi / lo^2 + 1 + (j - 1) (hi / lo)^2.
    """
    bins = bins_of(spectra, energies)
    low, high = bins.low, bins.high
    if spectra[0].form.width == 64:
        exponents = -np.frexp(high[bins.starts[:-1]])[1][bins.layer]
        low, high = np.ldexp(low, exponents), np.ldexp(high, exponents)
    low_squared, high_squared = low * low, high * high
    above_low, above_high = bins.energies_above(low_squared), bins.energies_above(high_squared)
    first = (above_low / np.maximum(high_squared, TINY) + 1.0) * (1 - MARGIN)
    known = low_squared > TINY  # below, squares have lost their digits: all that is sure of the key is that it is huge
    low_squared = np.where(known, low_squared, 1.0)
    last = np.where(known, (above_high / low_squared + 1.0) * (1 + MARGIN), np.inf)
    step = np.where(known, high_squared / low_squared, 1.0) * (1 + MARGIN)
    return Stretch(bins.layer, first, np.full(len(low), 1 - MARGIN), last, step, bins.counts)


def magnitude_stretch(spectra: Sequence[Spectrum], energies: Sequence[float]) -> Stretch:
    """Bounds on -m."""
    bins = bins_of(spectra, energies)
    flat = np.zeros(len(bins.counts))
    return Stretch(bins.layer, -bins.high, flat, -bins.low, flat, bins.counts)


def keep_best(spectra: Spectra, keep: int, ranking: "Ranking") -> dict[str, int]:
    """How many entries of each layer are among the `keep` best of all, within the bounds that `spectra` carries.

    Zeros have the worst rank of all; of those, and of equals in general, earlier layers keep first.
    """
    budgets = {name: floor for name, (floor, _) in spectra.bounds.items()}
    most = {n: max(budgets[n], min(cap, spectra[n].nonzero)) for n, (_, cap) in spectra.bounds.items()}
    if keep >= sum(most.values()):
        return _fill_with_zeros(most, {n: cap for n, (_, cap) in spectra.bounds.items()}, keep)
    sure, maybe = _narrow(_first_look(spectra), ranking, budgets, most, keep)
    open_layers = _undecided(sure, maybe, keep)
    coarse = {n: ranks for n, ranks in open_layers.items() if spectra[n].shift}
    if coarse:
        windows = spectra.refine(_bins(spectra, coarse), energy=ranking.needs_energy)
        exact = {n: windows.get(n) or Window(0, 0.0, 0, spectra[n]) for n in open_layers}
        sure, maybe = _narrow(exact, ranking, sure, maybe, keep)
        open_layers = _undecided(sure, maybe, keep)
    if open_layers:
        return sure | ranking.settle(spectra, open_layers, keep - sum(sure.values()))
    return sure if sum(sure.values()) == keep else maybe


def _first_look(spectra: Spectra) -> dict[str, Window]:
    return {name: Window(0, 0.0, 0, spectrum) for name, spectrum in spectra.items()}


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
    looks: Mapping[str, Window], ranking: "Ranking", sure: Mapping[str, int], maybe: Mapping[str, int], keep: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Per layer, how many entries are surely among the best, and how many may be: closer than was known before.

    Only the layers with sure < maybe are looked at, some at a time: of each, no more than a few bins stay in memory.
    """
    need = keep - sum(sure.values())
    batches = _batches({n: looks[n] for n in sure if sure[n] < maybe[n]})
    if need == 0 or not batches:
        return dict(sure), dict(sure) if need == 0 else dict(maybe)
    names = [name for batch in batches for name in batch]

    def look(batch: tuple[str, ...]) -> Stretch:
        stretch = ranking.stretch([looks[n].spectrum for n in batch], [looks[n].energy for n in batch])
        first, last = (np.array([ranks[n] - looks[n].above for n in batch]) for ranks in (sure, maybe))
        between = stretch.between(first, last)
        return replace(between, layer=between.layer + names.index(batch[0]))

    if sum(len(looks[n].spectrum.keys) for n in names) < REMEMBERED:
        look = functools.cache(look)
    # Closer in two steps, of groups and then of bins: of very many layers not even those near the cut should be held.
    least, most = _bracket([_outline(look(batch)) for batch in batches], need)
    passed, near = 0, []
    for stretch in map(look, batches):
        passed += int(stretch.counts[stretch.ends < least].sum())
        part = _reaching(stretch, least, most)
        near.append((part.low, part.ends, part.counts))
    least, most = _bracket(near, need - passed)
    done = sum(_passed(look(batch), least, len(names)) for batch in batches)
    live = joined([_reaching(look(batch), least, most) for batch in batches])
    below, within = _around(live, need - int(np.sum(done)), len(names))
    closer, farther = ((done + more).tolist() for more in (below, within))
    return (
        {**sure, **{n: sure[n] + more for n, more in zip(names, closer, strict=True)}},
        {**maybe, **{n: sure[n] + more for n, more in zip(names, farther, strict=True)}},
    )


def _batches(looks: Mapping[str, Window]) -> list[tuple[str, ...]]:
    """The layers in groups of one format, each of about as many bins as are looked at together."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    bins: dict[tuple[Any, ...], int] = defaultdict(int)
    for name, look in looks.items():
        kind = (look.spectrum.dtype, look.spectrum.shift)
        groups.setdefault((*kind, bins[kind] // TOGETHER), []).append(name)
        bins[kind] += len(look.spectrum.keys)
    return [tuple(group) for group in groups.values()]


def _bracket(outlines: list[tuple[Floats, Floats, Ints]], need: int) -> tuple[float, float]:
    """Bounds below and above the `need`-th smallest key, from bounds of groups of keys; the outlines are used up."""
    starts, ends, sizes = (np.concatenate(part) for part in zip(*outlines, strict=True))
    outlines.clear()
    return _weighted_kth(starts, sizes, need), _weighted_kth(ends, sizes, need)


def _outline(stretch: Stretch) -> tuple[Floats, Floats, Ints]:
    """Groups of neighbouring bins: a bound below all their keys, a bound above, and how many there are."""
    size = len(stretch.counts)
    firsts = np.flatnonzero((np.arange(size) - stretch.begins) % GROUP == 0)
    lasts = np.append(firsts[1:], size) - 1
    return stretch.low[firsts], stretch[lasts].ends, np.add.reduceat(stretch.counts, firsts)


def _passed(stretch: Stretch, least: float, layers: int) -> Ints:
    """Of each layer, how many entries lie in bins whose keys are all below `least` for sure."""
    return per_layer(stretch.layer, np.where(stretch.ends < least, stretch.counts, 0), layers)


def _reaching(stretch: Stretch, least: float, most: float) -> Stretch:
    """The bins whose keys may lie between `least` and `most`."""
    return stretch[(stretch.ends >= least) & (stretch.low <= most)]


def _around(live: Stretch, need: int, layers: int) -> tuple[Ints, Ints]:
    """Of each layer, how many entries are surely among the `need` best of these bins, and how many may be."""
    least = _kth(live.low, live.low_step, live.counts, need)
    most = _kth(live.high, live.high_step, live.counts, need)
    below = _count(live.high, live.high_step, live.counts, np.nextafter(least, -np.inf))
    within = _count(live.low, live.low_step, live.counts, most)
    return per_layer(live.layer, below, layers), per_layer(live.layer, within, layers)


def per_layer(layer: Ints, counts: Ints, layers: int) -> Ints:
    """The sum of the counts of each layer's bins: exact, as a layer has fewer than 2**53 entries."""
    return np.bincount(layer, weights=counts, minlength=layers).astype(np.int64)


def _count(start: Floats, step: Floats, counts: Ints, x: float) -> Ints:
    """How many keys of each progression are at most x."""
    with np.errstate(divide="ignore", invalid="ignore"):
        passed = np.floor((x - start) / step) + 1.0
    passed = np.where(start <= x, np.fmin(passed, counts), 0.0)  # fmin: where 0/0 or inf/inf, all are
    return np.where(start + step * (counts - 1) <= x, counts, passed).astype(np.int64)


def _kth(start: Floats, step: Floats, counts: Ints, k: int) -> float:
    """The k-th smallest key of all progressions: bisection until few keys are left, then all of these, one by one."""
    end = start + step * (counts - 1)
    low, high = _place(float(start.min())) - 1, _place(float(end.max()))
    ends = np.sort(end)
    fewer, enough = 0, int(counts.sum())  # how many keys are at most `low`, and at most `high`
    while high - low > 1:
        if enough - fewer <= ENUMERATED:
            return _kth_between(start, step, counts, (_float_at(low), _float_at(high)), k - fewer)
        # As long as some end lies between, the median of those; then halves of the interval, which ends in 64 steps.
        first, last = np.searchsorted(ends, [_float_at(low), _float_at(high)], side="right")
        middle = _place(float(ends[(first + last) // 2])) if last - first > 1 else (low + high) // 2
        if not low < middle < high:
            middle = (low + high) // 2
        x = _float_at(middle)
        total = int(_count(start, step, counts, x).sum())
        if total >= k:
            high, enough, live = middle, total, start <= x
        else:
            low, fewer, live = middle, total, end > x
            gone = int(counts[~live].sum())
            k, fewer, enough = k - gone, fewer - gone, enough - gone
        start, step, counts, end = start[live], step[live], counts[live], end[live]
    return _float_at(high)


def _kth_between(start: Floats, step: Floats, counts: Ints, interval: tuple[float, float], k: int) -> float:
    """The k-th smallest of the keys above the one and up to the other."""
    skipped, reached = (_count(start, step, counts, x) for x in interval)
    each = reached - skipped
    places = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each - skipped, each)
    keys = np.repeat(start, each) + np.repeat(step, each) * places
    return float(np.partition(keys, k - 1)[k - 1])


def _weighted_kth(values: Floats, weights: Ints, k: int) -> float:
    order = np.argsort(values)
    return float(values[order[np.searchsorted(np.cumsum(weights[order]), k)]])


def _place(x: float) -> int:
    """Where a float stands in the order of all floats."""
    place = int(np.float64(x).view(np.int64))
    return place if place >= 0 else -(place & 0x7FFF_FFFF_FFFF_FFFF)


def _float_at(place: int) -> float:
    return float(np.int64(abs(place)).view(np.float64)) * (1.0 if place >= 0 else -1.0)


@dataclass(frozen=True)
class Ranking:
    """An order over all entries, given by bounds for the search and by exact arithmetic at the cut."""

    stretch: Callable[[Sequence[Spectrum], Sequence[float]], Stretch]
    settle: Callable[[Spectra, Mapping[str, tuple[int, int]], int], dict[str, int]]
    needs_energy: bool
