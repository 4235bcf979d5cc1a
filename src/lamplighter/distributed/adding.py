"""Spectra added up over processes: each layer's as a histogram, or as a list where that is shorter."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.distributed import ProcessGroup

from lamplighter.distributed.collectives import gathered, largest, summed
from lamplighter.distributed.parts import Part
from lamplighter.formats import Ints
from lamplighter.spectrum import Spectrum, add, compact

TOGETHER = 1 << 24  # bytes: so much is sent at once
LIMB = 32  # bits

Groups = tuple[ProcessGroup, ...]


@dataclass(frozen=True)
class Plan:
    """How a layer's spectrum is sent, the same in all processes: the stretch of its keys, and the width of a count."""

    low: int
    span: int
    key: np.dtype[Any]
    count: np.dtype[Any]
    dense: bool


def by_groups(names: Sequence[str], parts: Mapping[str, Part]) -> dict[Groups, list[str]]:
    """The layers that lie in several processes, by the groups that they are to be added up over."""
    found: dict[Groups, list[str]] = defaultdict(list)
    for name in names:
        if name in parts and parts[name].groups:
            found[parts[name].groups].append(name)
    return found


def add_up(spectra: Mapping[str, Spectrum], parts: Mapping[str, Part]) -> dict[str, Spectrum]:
    """The spectra of whole layers, from those of what lies in each process."""
    whole = dict(spectra)
    for groups, names in by_groups(list(spectra), parts).items():
        for group in groups:
            whole |= _add_over(group, {name: whole[name] for name in names})
    return whole


def totals(counts: Mapping[str, int], parts: Mapping[str, Part]) -> dict[str, int]:
    """The sum over all processes of what each counted in its parts; layers that are all here count once."""
    found = dict(counts)
    for groups, names in by_groups(list(counts), parts).items():
        sums = summed(np.array([counts[name] for name in names], np.int64), groups)
        found |= dict(zip(names, sums.tolist(), strict=True))
    return found


def add_energies(energies: Mapping[str, float], parts: Mapping[str, Part]) -> dict[str, float]:
    """About the sums of the energies, to the same bits in all processes."""
    found = dict(energies)
    for groups, names in by_groups(list(energies), parts).items():
        sums = summed(np.array([energies[name] for name in names], np.float64), groups)
        # A sum may round another way elsewhere; whoever has the largest is right enough.
        found |= dict(zip(names, largest(sums, groups).tolist(), strict=True))
    return found


def add_integers(numbers: Mapping[str, int], parts: Mapping[str, Part], bits: int) -> dict[str, int]:
    """The sums of whole numbers from 0 up, of any size up to so many bits."""
    found = dict(numbers)
    for groups, names in by_groups(list(numbers), parts).items():
        limbs = np.array([_limbs(numbers[name], -(-bits // LIMB)) for name in names], np.int64)
        sums = summed(limbs, groups).tolist()
        found |= {n: sum(v << (LIMB * i) for i, v in enumerate(row)) for n, row in zip(names, sums, strict=True)}
    return found


def _limbs(number: int, count: int) -> list[int]:
    assert number >> (LIMB * count) == 0
    return [number >> (LIMB * place) & ((1 << LIMB) - 1) for place in range(count)]


def _add_over(group: ProcessGroup, spectra: Mapping[str, Spectrum]) -> dict[str, Spectrum]:
    """The sums of all processes' spectra of the same layers."""
    zeros, plans = _plans(group, spectra)
    keys_and_counts: dict[str, tuple[Ints, Ints]] = {}
    for names in _batches({n: p.span * p.count.itemsize for n, p in plans.items() if p.dense}, plans):
        keys_and_counts |= _histograms(group, {n: spectra[n] for n in names}, plans)
    lists = {n: len(spectra[n].keys) for n, p in plans.items() if not p.dense}
    if lists:
        keys_and_counts |= _lists(group, {n: spectra[n] for n in lists}, plans)
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64))
    return {
        name: compact(spectrum.dtype, spectrum.shift, zeros[name], *keys_and_counts.get(name, nothing))
        for name, spectrum in spectra.items()
    }


def _plans(group: ProcessGroup, spectra: Mapping[str, Spectrum]) -> tuple[dict[str, int], dict[str, Plan]]:
    """How many zeros each layer has, and how to send the spectra of those that have anything else."""
    nowhere = -(1 << 62)
    ends = [(-int(s.keys[0]), int(s.keys[-1])) if len(s.keys) else (nowhere, nowhere) for s in spectra.values()]
    sizes = [(s.zeros, len(s.keys), int(s.counts.max(initial=0))) for s in spectra.values()]
    ends = largest(np.array(ends, np.int64), [group]).tolist()
    sizes = summed(np.array(sizes, np.int64), [group]).tolist()
    zeros, plans = {}, {}
    for name, (low, last), (zero, distinct, top) in zip(spectra, ends, sizes, strict=True):
        zeros[name] = zero
        if distinct:
            span = last + low + 1
            key, count = _listed(span), _counted(top)
            dense = 2 * span * count.itemsize <= distinct * (key.itemsize + count.itemsize)
            plans[name] = Plan(-low, span, key, count, dense)
    return zeros, plans


def _counted(most: int) -> np.dtype[Any]:
    """The narrowest integers that every backend can add and that hold so much."""
    return np.dtype(np.uint8 if most < 1 << 8 else np.int32 if most < 1 << 31 else np.int64)


def _listed(span: int) -> np.dtype[Any]:
    return np.dtype(np.uint16 if span <= 1 << 16 else np.uint32 if span <= 1 << 32 else np.int64)


def _batches(sizes: Mapping[str, int], plans: Mapping[str, Plan]) -> Iterator[list[str]]:
    """The layers in groups of one width of counts, each of about as many bytes as are sent together."""
    kinds: dict[tuple[Any, int], list[str]] = defaultdict(list)
    filled: dict[Any, int] = defaultdict(int)
    for name, size in sizes.items():
        kind = plans[name].count
        kinds[kind, filled[kind] // TOGETHER].append(name)
        filled[kind] += size
    yield from kinds.values()


def _histograms(
    group: ProcessGroup, spectra: Mapping[str, Spectrum], plans: Mapping[str, Plan]
) -> dict[str, tuple[Ints, Ints]]:
    ends = np.cumsum([plans[name].span for name in spectra])
    every = np.zeros(int(ends[-1]), plans[next(iter(spectra))].count)
    for end, (name, spectrum) in zip(ends.tolist(), spectra.items(), strict=True):
        every[spectrum.keys.astype(np.int64) + (end - plans[name].span - plans[name].low)] = spectrum.counts
    every = summed(every, [group])
    found: dict[str, tuple[Ints, Ints]] = {}
    for end, name in zip(ends.tolist(), spectra, strict=True):
        counts: Ints = every[end - plans[name].span : end]
        filled = np.flatnonzero(counts)
        found[name] = (filled + plans[name].low, counts[filled])
    return found


def _lists(
    group: ProcessGroup, spectra: Mapping[str, Spectrum], plans: Mapping[str, Plan]
) -> dict[str, tuple[Ints, Ints]]:
    message = [np.array([len(s.keys) for s in spectra.values()], np.int64).tobytes()]
    for name, spectrum in spectra.items():
        message.append((spectrum.keys.astype(np.int64) - plans[name].low).astype(plans[name].key).tobytes())
        message.append(spectrum.counts.astype(plans[name].count).tobytes())
    said = gathered(b"".join(message), group)
    several: dict[str, list[Spectrum]] = {name: [] for name in spectra}
    for each in said:
        sizes, place = np.frombuffer(each, np.int64, len(spectra)).tolist(), 8 * len(spectra)
        for (name, spectrum), size in zip(spectra.items(), sizes, strict=True):
            plan = plans[name]
            keys = _read(each, plan.key, size, place).astype(np.int64) + plan.low
            counts = _read(each, plan.count, size, place + size * plan.key.itemsize).astype(np.int64)
            place += size * (plan.key.itemsize + plan.count.itemsize)
            several[name].append(Spectrum(spectrum.dtype, spectrum.shift, 0, keys, counts))
    sums = {name: add(parts) for name, parts in several.items()}
    return {name: (spectrum.keys, spectrum.counts) for name, spectrum in sums.items()}


def _read(message: bytes, dtype: np.dtype[Any], count: int, place: int) -> NDArray[Any]:
    return np.frombuffer(message, dtype, count, place)
