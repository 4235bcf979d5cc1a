"""What a lower precision of training costs: the same seeds trained in both, compared pair by pair."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, stdev
from typing import Literal

from lamplighter.experiments.spec import DENSE, Spec
from lamplighter.report.results import Results

EXACT: Literal["fp32"] = "fp32"
# Of Student's distribution with 1, 2, ... degrees of freedom, what 95 % lie within.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True)
class Pairs:
    """One method after one round, trained in two precisions from the same seeds.

    Args:
        method: the method; "dense" for the dense network.
        density: the fraction of weights left.
        exact: the values in fp32, seed by seed.
        other: the values in the other precision.
    """

    method: str
    density: float
    exact: tuple[float, ...]
    other: tuple[float, ...]

    @property
    def differences(self) -> list[float]:
        """The other precision's value less that of fp32, seed by seed."""
        return [b - a for a, b in zip(self.exact, self.other, strict=True)]

    @property
    def mean(self) -> float:
        """Of the differences."""
        return fmean(self.differences)

    @property
    def half_width(self) -> float:
        """Of the 95 % confidence interval of the mean difference.

        >>> round(Pairs("lamp", 1.0, (1.0, 2.0, 3.0), (2.0, 2.0, 5.0)).half_width, 3)
        2.484
        """
        return within_95(len(self.exact) - 1) * stdev(self.differences) / math.sqrt(len(self.exact))


def within_95(freedom: int) -> float:
    """How many standard errors either way hold 95 %, with so many degrees of freedom (Student's t).

    >>> within_95(4), round(within_95(1000), 2)
    (2.776, 1.96)
    """
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def twin(results: Results, others: Sequence[Results]) -> Results | None:
    """The runs in fp32 that differ from these in nothing but the precision of training."""
    if results.spec.retrain.precision == EXACT:
        return None
    wanted = _in_fp32(results.spec)
    return next((other for other in others if replace(other.spec, method=DENSE, seed=0).id == wanted), None)


def _in_fp32(spec: Spec) -> str:
    dense, retrain = (replace(settings, precision=EXACT) for settings in (spec.dense, spec.retrain))
    return replace(spec, method=DENSE, seed=0, dense=dense, retrain=retrain).id


def compare(exact: Results, other: Results) -> list[Pairs]:
    """A comparison for the dense network and every method and round that have two or more seeds in common."""
    found = []
    places = [(DENSE, 0), *((method, index) for method in other.methods if method != DENSE for index in other.rounds)]
    factor = 100 if other.metric == "accuracy" else 1
    for method, index in places:
        first, second = exact.records(method, index), other.records(method, index)
        seeds = [seed for seed in first if seed in second]
        values = [tuple(factor * records[seed].value for seed in seeds) for records in (first, second)]
        if len(seeds) > 1 and all(map(math.isfinite, values[0] + values[1])):
            found.append(Pairs(method, first[seeds[0]].density, *values))
    return found


def markdown(pairs: Sequence[Pairs], title: str, precision: str, metric: str) -> str:
    """A table of all comparisons."""
    head = ["", "weights left (%)", "seeds", EXACT, precision, f"{precision} - {EXACT}", "95 % interval"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for each in pairs:
        low, high = each.mean - each.half_width, each.mean + each.half_width
        numbers = [f"{100 * each.density:.3g}", str(len(each.exact)), f"{fmean(each.exact):.2f}"]
        numbers += [f"{fmean(each.other):.2f}", f"{each.mean:+.2f}", f"{low:+.2f} to {high:+.2f}"]
        lines.append([each.method, *numbers])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    what = "test accuracy (%)" if metric == "accuracy" else metric
    note = (
        f"{what[0].upper()}{what[1:]}, means over the seeds that both have; the interval is that of the mean difference"
    )
    return f"### {title}: {precision} against {EXACT}\n\n{body}\n\n{note} of paired seeds (Student's t).\n"
