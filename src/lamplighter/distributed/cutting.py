"""Ties at the cut of layers that lie in several processes, settled by flat index in the whole layer.

Of the entries that equal the cut's code, the first `drop` go. Entries stand in the same order here as in the whole
layer, so it is enough to know how many of those first ones lie here. All processes search together for the index
before which `drop` of them lie: each step cuts what is left of the layer to a 32nd part, whatever the placement.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lamplighter import bits
from lamplighter.distributed.adding import Groups, by_groups
from lamplighter.distributed.collectives import summed
from lamplighter.distributed.parts import Part
from lamplighter.formats import Ints
from lamplighter.kernels import Run
from lamplighter.reading import run_of
from lamplighter.spectra import Cut

if TYPE_CHECKING:
    from lamplighter.distributed.source import Spread

WAYS = 32
STRETCH = 1 << 14  # entries; how many of them are equal is remembered
CHUNK = 1 << 20


class Equals:
    """How many live entries of a run equal a code before any place."""

    def __init__(self, run: Run, code: int) -> None:
        self.run = run
        self.code = code
        counts = [self._equal(start, start + CHUNK) for start in range(0, run.entries.numel(), CHUNK)]
        stretches = [
            torch.nn.functional.pad(each, (0, -len(each) % STRETCH)).view(-1, STRETCH).sum(1) for each in counts
        ]
        sums: Ints = torch.cat(stretches).cpu().numpy() if stretches else np.empty(0, np.int64)
        self.sums = np.concatenate([[0], np.cumsum(sums)])

    def before(self, place: int) -> int:
        """How many there are among the first `place` entries."""
        whole = place // STRETCH
        rest = self._equal(whole * STRETCH, place).sum() if place % STRETCH else 0
        return int(self.sums[whole]) + int(rest)

    def _equal(self, start: int, stop: int) -> Tensor:
        integers = self.run.entries[start:stop].view(self.run.form.bits)
        equal = (integers & self.run.form.code_mask) == self.code
        if self.run.alive is not None:
            equal &= bits.unpack(self.run.alive[start // 8 : (start + len(equal) + 7) // 8], equal.shape)
        return equal


def cuts_here(source: "Spread", cuts: Mapping[str, Cut]) -> dict[str, Cut]:
    """Cuts of whole layers, as they cut what lies here."""
    found = dict(cuts)
    tied = [name for name, cut in cuts.items() if cut.drop]
    for groups, names in by_groups(tied, source.parts).items():
        equals = {n: Equals(run_of(source.tensors[n], source.alive.get(n)), cuts[n].code) for n in names}
        drops = _drops(groups, {n: source.parts[n] for n in names}, equals, {n: cuts[n].drop for n in names})
        found |= {name: Cut(cuts[name].code, drop) for name, drop in drops.items()}
    return found


def _drops(
    groups: Groups, parts: Mapping[str, Part], equals: Mapping[str, Equals], drops: Mapping[str, int]
) -> dict[str, int]:
    """How many of each layer's first `drops` equal entries lie here."""
    ends = {name: (0, int(np.prod(parts[name].whole, dtype=np.int64))) for name in drops}
    found: dict[str, int] = {}
    while left := [name for name in drops if name not in found]:
        probes = {name: _between(*ends[name]) for name in left}
        here = {name: _equals_before(parts[name], equals[name], probes[name]) for name in left}
        everywhere = summed(np.array([here[name] for name in left], np.int64), groups)
        for name, counts in zip(left, everywhere.tolist(), strict=True):
            place = next(i for i, count in enumerate(counts) if count >= drops[name])
            low = int(probes[name][place - 1]) if place else ends[name][0]
            ends[name] = (low, int(probes[name][place]))
            if counts[place] == drops[name]:
                found[name] = here[name][place]
    return found


def _between(low: int, high: int) -> Ints:
    """Indices that divide what lies between two, the higher one included: the same number of them always."""
    return np.array([low + -(-(high - low) * way // WAYS) for way in range(1, WAYS + 1)], np.int64)


def _equals_before(part: Part, equals: Equals, indices: Ints) -> list[int]:
    places = part.before(indices).tolist()
    known = {place: equals.before(place) for place in set(places)}
    return [known[place] for place in places]
