"""`lamp bench distributed`: a small run for real, and its record."""

import json

import pytest
from typer.testing import CliRunner

from lamplighter.benchmarking import distributed
from lamplighter.benchmarking.distributed import Row
from lamplighter.cli.app import app

# What else this machine does while tests run is not what they are about.
pytestmark = pytest.mark.filterwarnings("default:this machine is busy")

ROWS = [
    Row(dtype, processes, 2_000_000, 2, 4_000_000, (0.1, 0.2, 0.9), 30_000 * (processes - 1), 12, dtype)
    for dtype in ("bfloat16", "float32")
    for processes in (1, 3)
]


def lamp(*arguments):
    return CliRunner().invoke(app, ["bench", "distributed", *arguments])


@pytest.mark.slow
def test_json_holds_every_number_of_processes_with_the_same_masks():
    done = lamp("--side", "64", "--layers", "2", "--repeats", "1", "--processes", "1", "--processes", "2", "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record.keys() == {"machine", "request", "rows"}
    assert [(row["dtype"], row["processes"]) for row in record["rows"]] == [
        ("bfloat16", 1),
        ("bfloat16", 2),
        ("float32", 1),
        ("float32", 2),
    ]
    for alone, two in zip(record["rows"][::2], record["rows"][1::2], strict=True):
        assert (alone["sent"], alone["masks"]) == (0, two["masks"])
        assert two["sent_per_layer"] == two["sent"] / 2
        assert two["share"] == two["sent"] / two["nbytes"]


def test_the_table_has_a_part_for_each_dtype(monkeypatch):
    monkeypatch.setattr(distributed, "measure", lambda request, progress: ROWS)
    done = lamp()
    assert done.exit_code == 0, done.output
    assert done.stdout.count("float32") == 1
    row = done.stdout.splitlines()[-4]
    assert all(f" {number} " in row for number in ("3", "200", "30.0", "1.500 %", "12"))


def test_different_masks_are_an_error(monkeypatch):
    broken = [*ROWS[:-1], Row("float32", 3, 2_000_000, 2, 4_000_000, (1.0,), 0, 0, "others")]
    monkeypatch.setattr(distributed, "measure", lambda request, progress: broken)
    done = lamp()
    assert (done.exit_code, done.stdout) == (1, "")
    assert "different masks" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--processes", "0"), "0 processes are asked for"),
        (("--dtype", "int8"), "dtype is 'int8'"),
        (("--placement", "blocks"), "placement is 'blocks'"),
    ],
    ids=str,
)
def test_what_cannot_be_measured_is_refused_before_anything_is(arguments, said):
    done = lamp(*arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert said in done.stderr
