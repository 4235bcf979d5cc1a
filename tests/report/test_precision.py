"""A lower precision is compared with fp32 pair by pair, where the same seeds were trained in both."""

from dataclasses import replace

import pytest

from lamplighter.experiments.store import find_runs
from lamplighter.report.bundle import contents, sections
from lamplighter.report.precision import Pairs, compare, twin, within_95
from lamplighter.report.results import collect
from made_runs import SPEC, make_runs

HALF = replace(SPEC, dense=replace(SPEC.dense, precision="bf16"), retrain=replace(SPEC.retrain, precision="bf16"))


def write_runs(root):
    make_runs(root, SPEC, {0: 0.90, 1: 0.92, 2: 0.94}, {"lamp": {0: {1: 0.80}, 1: {1: 0.81}, 2: {1: 0.85}}})
    make_runs(root, HALF, {0: 0.91, 1: 0.92, 3: 0.99}, {"lamp": {0: {1: 0.79}, 1: {1: 0.80}}, "erk": {0: {1: 0.5}}})
    return collect(find_runs(root))


def by_precision(results, precision):
    return next(each for each in results if each.spec.retrain.precision == precision)


def test_the_twin_of_runs_differs_in_nothing_but_precision(tmp_path):
    results = write_runs(tmp_path)
    exact, half = by_precision(results, "fp32"), by_precision(results, "bf16")
    assert twin(half, results) is exact
    assert twin(exact, results) is None
    longer = replace(half, spec=replace(HALF, dense=replace(HALF.dense, steps=HALF.dense.steps + 1)))
    assert twin(longer, results) is None


def test_only_seeds_that_both_have_are_compared(tmp_path):
    results = write_runs(tmp_path)
    dense, lamp = compare(by_precision(results, "fp32"), by_precision(results, "bf16"))
    assert (dense.method, dense.exact, dense.other) == ("dense", (90.0, 92.0), (91.0, 92.0))
    assert (lamp.method, lamp.exact, lamp.other) == ("lamp", (80.0, 81.0), (79.0, 80.0))
    assert lamp.mean == pytest.approx(-1)
    assert lamp.half_width == pytest.approx(0)


def test_the_interval_is_students():
    pairs = Pairs("lamp", 1.0, (80.0, 81.0, 82.0, 83.0, 84.0), (80.5, 81.0, 83.0, 82.5, 84.5))
    # The differences are 0.5, 0, 1, -0.5, 0.5: mean 0.3, sample deviation 0.570.
    assert pairs.mean == pytest.approx(0.3)
    assert pairs.half_width == pytest.approx(2.776 * 0.5700877 / 5**0.5, rel=1e-6)
    scipy = pytest.importorskip("scipy.stats")
    for freedom in (1, 4, 15, 16, 30, 200):
        assert within_95(freedom) == pytest.approx(scipy.t.ppf(0.975, freedom), rel=1e-3)


def test_the_table_is_a_file_beside_the_others(tmp_path):
    results = write_runs(tmp_path)
    section = next(each for each in sections(results) if each.results.spec.retrain.precision == "bf16")
    text = contents(section, results)[f"{section.stem}-against-fp32.md"].decode()
    assert "| dense | 100 | 2 | 91.00 | 91.50 | +0.50 | -5.85 to +6.85 |" in text
    assert "| lamp | 80 | 2 | 80.50 | 79.50 | -1.00 | -1.00 to -1.00 |" in text
    assert "erk" not in text
