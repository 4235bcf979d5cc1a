"""The numbers behind the charts and the sortable tables, each of them once."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from lamplighter.experiments.records import Record
from lamplighter.report.bundle import Section
from lamplighter.report.captions import MEASURED, heads
from lamplighter.report.layerwise import layer_shapes
from lamplighter.report.paper import PaperValue
from lamplighter.report.peaks import kernel_of
from lamplighter.report.results import Cell, Results
from lamplighter.report.tables import paper_value
from lamplighter.report.tradeoff import counterpart, shared

_FEW = 0.03  # of a layer: less than that cannot be read off a linear scale
_DIGITS = 8  # so many that rounding once more for the eye ends where the tables do


def numbers(section: Section, sections: Sequence[Section]) -> dict[str, Any]:
    """What was measured, for each method a list over the pruned rounds.

    Args:
        section: whose numbers.
        sections: all on the page, among which its one-shot counterpart may be.
    """
    results = section.results
    return {
        "title": section.title,
        "label": MEASURED[results.metric],
        "percent": results.metric == "accuracy",
        "tested": section.tested,
        "lower": results.lower_is_better,
        "rounds": results.rounds,
        "left": [round(100 * results.spec.density(index), 8) for index in results.rounds],
        "heads": heads(results, results.rounds),
        "kept": [_of_all(results, index) for index in results.rounds],
        "linear": _is_linear(results),
        "dense": _cell(results.cell("dense", 0)) if section.tested else None,
        "methods": [_method(results, method, section.tested) for method in results.methods if results.rounds],
        "oneshot": _oneshot(results, sections),
    }


def layers(results: Results) -> dict[str, Any]:
    """Every layer with its shape and size, and what each method keeps of it: method -> rounds -> layers."""
    sizes = _sizes(results)
    shapes = layer_shapes(results.spec, sizes)
    return {
        "names": list(shapes),
        "shapes": [" x ".join(map(str, shape)) for shape in shapes.values()],
        "sizes": [sizes[name] for name in shapes],
        "pointwise": _pointwise(results, shapes),
        "kept": {
            method: [_kept(results.records(method, index), list(shapes)) for index in results.rounds]
            for method in results.methods
        },
    }


def _pointwise(results: Results, shapes: Mapping[str, Sequence[int]]) -> list[bool] | None:
    """Of a profile, which layers are 1x1 convolutions: they are pruned less than others."""
    if results.spec.plan != "profile":
        return None
    return [kernel_of(name, shape) == "1x1" for name, shape in shapes.items()]


def _is_linear(results: Results) -> bool:
    """Whether a linear scale shows what is left of every layer, even of the sparsest network."""
    last = results.rounds[-1:]
    records = [
        record for method in results.methods for index in last for record in results.records(method, index).values()
    ]
    return (
        min((record.budgets[name] / size for record in records for name, size in record.sizes.items()), default=1)
        > _FEW
    )


def _of_all(results: Results, index: int) -> list[int]:
    """Weights left and weights in all, which are the same for every method and seed."""
    record = next(record for method in results.methods for record in results.records(method, index).values())
    return [record.kept, record.total]


def _method(results: Results, method: str, tested: bool) -> dict[str, Any]:
    cells = [results.cell(method, index) if tested else None for index in results.rounds]
    paper = [paper_value(results, method, index) for index in results.rounds]
    return {
        "name": method,
        "cells": [_cell(cell) for cell in cells],
        "paper": [_paper(value) for value in paper] if any(paper) else None,
        "emptied": [_emptied(results.records(method, index)) for index in results.rounds],
    }


def _cell(cell: Cell | None) -> list[Any] | None:
    """Mean, sample standard deviation, number of seeds, and the seeds' values; null for what is not finite."""
    if cell is None:
        return None
    return [finite(cell.mean), finite(cell.std), cell.n, [finite(value) for value in cell.values.values()]]


def _paper(value: PaperValue | None) -> list[float] | None:
    return None if value is None else list(value)


def finite(value: float | None) -> float | None:
    """A number as JSON can say it, or None: there are no infinities and no NaN, which is what diverges ends in."""
    return None if value is None or not math.isfinite(value) else round(value, _DIGITS)


def _emptied(records: Mapping[int, Record]) -> int | None:
    """How many layers have nothing left, in the seed that has most of them."""
    return max((sum(not left for left in record.budgets.values()) for record in records.values()), default=None)


def _kept(records: Mapping[int, Record], names: Sequence[str]) -> list[float] | None:
    """Weights left in each layer, averaged over seeds."""
    if not records:
        return None
    means = [fmean(record.budgets[name] for record in records.values()) for name in names]
    return [int(mean) if mean == int(mean) else round(mean, 1) for mean in means]


def _sizes(results: Results) -> Mapping[str, int]:
    """Of the layers that are pruned: what counts in the dense network may be more."""
    rounds = next(iter(next(iter(results.pruned.values())).values()))
    return next(iter(rounds.values())).sizes


def _oneshot(results: Results, sections: Sequence[Section]) -> int | None:
    """Where on the page the same network is pruned at once, if it is."""
    every = [section.results for section in sections]
    found = counterpart(results, every)
    if found is None or not shared(results, found):
        return None
    return next(place for place, each in enumerate(every) if each is found)
