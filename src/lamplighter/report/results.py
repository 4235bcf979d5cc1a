"""What the runs of one experiment came to: a value for each method, round and seed, and their statistics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from lamplighter.experiments.records import Metric, Record
from lamplighter.experiments.spec import DENSE, Spec
from lamplighter.experiments.store import Run

# As in the paper's tables, where LAMP comes last. What is not named here stands before it.
_ORDER = ("global", "uniform", "uniform+", "er", "erk")


@dataclass(frozen=True)
class Cell:
    """One method after one round.

    Args:
        values: seed -> percent correct, or perplexity.
    """

    values: Mapping[int, float]

    @property
    def n(self) -> int:
        """How many seeds."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return fmean(self.values.values())

    @property
    def std(self) -> float | None:
        """The sample standard deviation (n - 1); None for one seed, or where a network diverged."""
        values = list(self.values.values())
        return stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


@dataclass(frozen=True)
class Results:
    """All runs whose settings differ in nothing but method and seed.

    Args:
        spec: their settings; its method and seed say nothing.
        dense: seed -> the record of the dense network, which the methods share.
        pruned: method -> seed -> round -> record, from round 1 on.
    """

    spec: Spec
    dense: Mapping[int, Record]
    pruned: Mapping[str, Mapping[int, Mapping[int, Record]]]

    @property
    def methods(self) -> tuple[str, ...]:
        """In the order of the paper's tables; "dense" alone where nothing is pruned yet."""
        return tuple(sorted(self.pruned, key=_place)) or (DENSE,)

    @property
    def rounds(self) -> tuple[int, ...]:
        """Every round that any method has finished, without the dense one."""
        return tuple(sorted({index for record in self.every_record if (index := record.round) > 0}))

    @property
    def every_record(self) -> list[Record]:
        """Of all seeds, methods and rounds."""
        later = [record for seeds in self.pruned.values() for rounds in seeds.values() for record in rounds.values()]
        return [*self.dense.values(), *later]

    @property
    def metric(self) -> Metric:
        """What was measured."""
        return self.every_record[0].metric

    @property
    def lower_is_better(self) -> bool:
        """Whether small values are good ones."""
        return self.metric == "perplexity"

    def records(self, method: str, index: int) -> dict[int, Record]:
        """Seed -> the record of a method after a round; of the dense network, which all methods share, for round 0."""
        if index == 0:
            return dict(self.dense)
        seeds = self.pruned.get(method, {})
        return {seed: rounds[index] for seed, rounds in sorted(seeds.items()) if index in rounds}

    def cell(self, method: str, index: int) -> Cell | None:
        """The values of a method after a round, or None if no seed got there."""
        factor = 100 if self.metric == "accuracy" else 1
        values = {seed: factor * record.value for seed, record in self.records(method, index).items()}
        return Cell(values) if values else None


def _place(method: str) -> tuple[int, int, str]:
    known = _ORDER.index(method) if method in _ORDER else len(_ORDER)
    return int(method == "lamp"), known, method


@dataclass(frozen=True)
class Counted:
    """A run that counts, with what it has finished.

    Args:
        run: where it is.
        records: round -> record, one at least.
    """

    run: Run
    records: Mapping[int, Record]


def collect(runs: Iterable[Run]) -> list[Results]:
    """The results of every group of runs that belong together, by recipe and then the longest training first."""
    return grouped(counted(runs))


def counted(runs: Iterable[Run]) -> list[Counted]:
    """The runs that have finished a round, by seed.

    Runs that differ in how they are carried out alone (see `Spec.id`) are the same run: of several copies the one that
    got furthest counts, once.
    """
    found: dict[str, Counted] = {}
    for run in runs:
        records = {record.round: record for record in run.records}
        before = found.get(run.spec.id)
        if records and (before is None or len(records) > len(before.records)):
            found[run.spec.id] = Counted(run, records)
    return sorted(found.values(), key=lambda each: each.run.spec.seed)


def grouped(runs: Sequence[Counted]) -> list[Results]:
    """The results of runs that each count once."""
    finished = [(each.run.spec, each.records) for each in runs]
    dense: dict[str, dict[int, Record]] = {}
    groups: dict[str, Results] = {}
    for spec, records in finished:
        if spec.method == DENSE:
            dense.setdefault(setting(spec), {})[spec.seed] = records[0]
    for spec, records in finished:
        if spec.method != DENSE:
            shared = dense.get(setting(spec.shared), {})
            group = groups.setdefault(setting(spec), Results(replace(spec, method=DENSE, seed=0), shared, {}))
            pruned = {**group.pruned, spec.method: {**group.pruned.get(spec.method, {}), spec.seed: records}}
            groups[setting(spec)] = replace(group, pruned=pruned)
    used = {setting(group.spec.shared) for group in groups.values()}
    for spec, _ in finished:
        if spec.method == DENSE and setting(spec) not in used:
            groups[setting(spec)] = Results(replace(spec, seed=0), dense[setting(spec)], {})
    return sorted(groups.values(), key=lambda found: (found.spec.recipe, -_length(found.spec), setting(found.spec)))


def setting(spec: Spec) -> str:
    """The same for all specs that differ in nothing but method and seed."""
    return replace(spec, method=DENSE, seed=0).id


def _length(spec: Spec) -> int:
    return spec.dense.steps + spec.retrain.steps
