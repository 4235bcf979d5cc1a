"""`lamp bench pack`: a small run for real, and its record."""

import json
from statistics import median

import pytest
from typer.testing import CliRunner

from lamplighter.benchmarking import packing
from lamplighter.benchmarking.packing import WORKS, Row, shapes
from lamplighter.cli.app import app

# What else this machine does while tests run is not what they are about.
pytestmark = pytest.mark.filterwarnings("default:this machine is busy")


def lamp(*arguments):
    return CliRunner().invoke(app, ["bench", "pack", *arguments])


def test_json_holds_every_work_with_its_rate(tmp_path):
    done = lamp("--size", "0.003", "--repeats", "2", "--sparsity", "0.9", "--folder", str(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record.keys() == {"machine", "request", "rows"}
    (row,) = record["rows"]
    assert list(row["seconds"]) == list(WORKS)
    for work, seconds in row["seconds"].items():
        assert len(seconds) == 2
        assert row["bytes_per_second"][work] == pytest.approx(row["dense_bytes"] / median(seconds))
    assert row["copies"]["copy"] == 1
    assert row["bits"] == pytest.approx(row["ideal_bits"], rel=0.1)
    assert list(tmp_path.iterdir()) == []


def test_the_table_has_a_part_for_each_sparsity(monkeypatch):
    seconds = dict.fromkeys(WORKS, (1.0, 2.0, 9.0))
    rows = [Row(sparsity, 10**9, 2 * 10**9, 10**9, 8.0, seconds | {"unpack": (4.0,)}) for sparsity in (0.5, 0.99)]
    monkeypatch.setattr(packing, "measure", lambda request, progress: rows)
    done = lamp("--folder", "/tmp")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("unpack") == 2
    (row,) = [line for line in done.stdout.splitlines() if " 0.99 " in line]
    assert " 8.000 " in row
    assert " 1.160 " in row
    (row, _) = [line for line in done.stdout.splitlines() if "unpack" in line]
    assert all(f" {number} " in row for number in ("4.00", "0.50", "2.00"))
    assert "torch" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--size", "0"), "the model is to take 0.0 GB"),
        (("--size", "nan"), "the model is to take nan GB"),
        (("--size", "1e9"), "bytes free"),
        (("--sparsity", "1.5"), "sparsity is 1.5"),
        (("--folder", "/nowhere"), "there is no folder /nowhere"),
    ],
    ids=str,
)
def test_what_cannot_be_measured_is_refused_before_anything_is(arguments, said):
    done = lamp(*arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert said in done.stderr


@pytest.mark.parametrize("gigabytes", [0.01, 0.2, 1, 14])
def test_the_model_has_about_the_size_that_is_asked_for(gigabytes):
    described = list(shapes(gigabytes))
    size = 2 * sum(shape[0] * (shape[1] if len(shape) == 2 else 1) for _, _, shape in described)
    assert size == pytest.approx(gigabytes * 1e9, rel=0.15)
    assert len({name for name, _, _ in described}) == len(described)
