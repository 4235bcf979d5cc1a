"""`lamp bench prune`: a small run for real, its record, and that the contenders do the same work."""

import json
import math

import pytest
import torch
from typer.testing import CliRunner

import lamplighter as ll
from lamplighter.benchmarking import contenders, machine, memory, scaling, weights
from lamplighter.benchmarking.contenders import CONTENDERS
from lamplighter.benchmarking.pruning import Row, copies, speedup, unsteady
from lamplighter.cli import bench
from lamplighter.cli.app import app

# What else this machine does while tests run is not what they are about.
pytestmark = pytest.mark.filterwarnings("default:this machine is busy", "default:a plain copy took")


def lamp(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_json_holds_every_contender_with_its_ratios():
    done = lamp("bench", "prune", "--quick", "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record.keys() == {"machine", "request", "rows"}
    assert record["machine"]["threads"] == torch.get_num_threads()
    assert record["request"]["model"] == "resnet50-small"
    found = [(row["dtype"], row["contender"]) for row in record["rows"]]
    assert found == [(dtype, name) for dtype in ("float32", "bfloat16") for name in CONTENDERS]
    for row in record["rows"]:
        assert len(row["seconds"]) == 3
        assert row["median"] == sorted(row["seconds"])[1]
        assert row["peak_extra_of_weights"] is None
        assert (row["times_ours"] == 1) >= (row["contender"] == "lamplighter")
        assert (row["copies"] == 1) >= (row["contender"] == "copy")


def test_the_table_names_every_contender_and_the_machine():
    done = lamp("bench", "prune", "--quick", "--dtype", "float32")
    assert done.exit_code == 0, done.output
    for name in CONTENDERS:
        assert name in done.stdout
    assert "torch" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--sparsity", "1.5"), "sparsity is 1.5, expected more than 0 and less than 1"),
        (("--sparsity", "nan"), "sparsity is nan"),
        (("--sparsity", "1e-8"), "sparsity 1e-08 removes 0 of 25,502,912 weights"),
        (("--quick", "--sparsity", "1e-7"), "sparsity 1e-07 removes 0 of 393,112 weights"),
        (("--quick", "--sparsity", "0.9999999"), "sparsity 0.9999999 removes 393,112 of 393,112 weights"),
        (("--scaling", "--sparsity", "1.5"), "sparsity is 1.5"),
        (("--scaling", "--sparsity", "1e-8"), "removes 0 of 10,000,000 weights"),
        (("--scaling", "--device", "meta"), "device 'meta' is not available here"),
        (("--dtype", "int8"), "unknown dtype 'int8'"),
        (("--device", "abacus"), "unknown device 'abacus'"),
        (("--device", "meta"), "device 'meta' is not available here"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_weights_are_made(monkeypatch, arguments, said):
    monkeypatch.setattr(weights, "fill", lambda *_, **__: pytest.fail("measuring was begun"))
    monkeypatch.setattr(machine, "disturbance", lambda: "told before the error")
    done = lamp("bench", "prune", *arguments)
    assert done.exit_code == 1
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("option", [("--model", "resnet50"), ("--repeats", "10"), ("--memory",), ("--no-memory",)])
@pytest.mark.parametrize("choice", ["--quick", "--scaling"])
def test_options_that_would_go_unheeded_are_refused(monkeypatch, choice, option):
    monkeypatch.setattr(weights, "fill", lambda *_, **__: pytest.fail("measuring was begun"))
    done = lamp("bench", "prune", choice, *option)
    assert done.exit_code == 2
    assert choice in done.stderr
    assert option[0].replace("--no-", "--") in done.stderr


@pytest.mark.parametrize("option", [("--dtype", "float32"), ("--quick",)])
def test_scaling_has_one_dtype_and_no_quick_form(monkeypatch, option):
    monkeypatch.setattr(weights, "fill", lambda *_, **__: pytest.fail("measuring was begun"))
    done = lamp("bench", "prune", "--scaling", *option)
    assert done.exit_code == 2
    assert option[0] in done.stderr


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ((), ("resnet50", 5, True)),
        (("--model", "resnet50-small", "--repeats", "10", "--no-memory"), ("resnet50-small", 10, False)),
        (("--memory",), ("resnet50", 5, True)),
        (("--quick",), ("resnet50-small", 3, False)),
    ],
)
def test_what_is_asked_for_is_measured(monkeypatch, arguments, asked):
    seen = []
    monkeypatch.setattr(bench, "_prune_contest", lambda request, *_: seen.append(request))
    assert lamp("bench", "prune", *arguments).exit_code == 0
    assert [(each.model, each.repeats, each.with_memory) for each in seen] == [asked]


def test_the_listing_can_remove_nothing(distinct):
    masks = contenders.prune_by_listing(distinct, 1e-7)
    assert all(mask.all() for mask in masks.values())


def test_resnet50_has_its_published_size():
    shapes = weights.resnet50()
    assert sum(math.prod(shape) for shape in shapes.values()) == 25_502_912
    assert len(shapes) == 54
    assert shapes["layer4.2.conv2.weight"] == (512, 512, 3, 3)


def test_weights_of_a_size_have_that_size():
    for size in (1, 10_000_000, 12_345_678):
        assert sum(math.prod(shape) for shape in weights.of_size(size).values()) == size


@pytest.fixture
def distinct():
    """Layers of different scales, all magnitudes distinct."""
    generator = torch.Generator().manual_seed(0)
    made = {f"layer{place}": torch.randn(400, generator=generator) * 10.0**place for place in range(-2, 3)}
    assert all(weight.abs().unique().numel() == weight.numel() for weight in made.values())
    return made


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.9, 0.99])
def test_the_listing_keeps_as_many_of_each_layer_as_we_do(distinct, sparsity):
    budgets = ll.allocate(distinct, sparsity=sparsity)
    masks = contenders.prune_by_listing(distinct, sparsity)
    assert {name: int(mask.sum()) for name, mask in masks.items()} == budgets
    assert {name: int(weight.count_nonzero()) for name, weight in distinct.items()} == budgets


def test_the_scores_of_the_listing_are_equation_1(distinct):
    weight = distinct["layer0"].double()
    squares = weight.square()
    expected = [square / squares[squares >= square].sum() for square in squares]
    assert torch.allclose(contenders.lamp_scores(weight), torch.stack(expected), rtol=1e-12)


def test_torch_prunes_the_weights_it_is_given(distinct):
    holders = contenders.torch_global(distinct, 0.9)()
    assert sum(int(holder.weight.count_nonzero()) for holder, _ in holders) == 200


def test_restoring_undoes_pruning():
    made = weights.fill(weights.of_size(1000), torch.float32, "cpu")
    pristine = {name: weight.clone() for name, weight in made.items()}
    contenders.lamplighter(made, 0.9)()
    weights.restore(made, pristine)
    assert all(torch.equal(made[name], pristine[name]) for name in made)


def test_ratios_are_of_medians_within_a_dtype():
    def row(dtype, contender, *seconds):
        return Row(dtype, contender, seconds, 25, 100)

    rows = [row("float32", "lamplighter", 1, 2, 9), row("float32", "copy", 1, 1, 5), row("bfloat16", "copy", 7, 7, 7)]
    assert speedup(rows, rows[1]) == 0.5
    assert copies(rows, rows[0]) == 2
    assert rows[0].memory == 0.25


def test_copies_of_very_different_length_give_a_disturbance_away():
    calm = Row("float32", "copy", (0.020, 0.025, 0.022), None, 100)
    torn = Row("bfloat16", "copy", (0.003, 0.290, 0.004), None, 100)
    assert unsteady([calm, torn, Row("float16", "lamplighter", (1, 50), None, 100)]) == ["bfloat16"]


def test_peak_memory_is_measured_in_a_fresh_process():
    extra = memory.peak_extra_bytes("copy", "resnet50-small", "float32", 0.9, "cpu")
    if extra is None:
        pytest.skip("this system does not tell peak memory")
    assert 0 <= extra < 100 * 2**20


def test_a_process_that_fails_is_an_error_with_its_last_line():
    with pytest.raises(ll.LamplighterError, match="KeyError") as raised:
        memory.peak_extra_bytes("copy", "no such model", "float32", 0.9, "cpu")
    assert "--no-memory" in raised.value.hint


def test_scaling_reports_each_size_against_the_smallest():
    done = []
    rows = scaling.measure((1_000, 4_000), 0.9, "cpu", done.append)
    assert [row.weights for row in rows] == [1_000, 4_000]
    assert rows[0].times_smallest == 1
    assert len(done) == 2 * (1 + scaling.REPEATS)
    assert rows[1].nanoseconds_per_weight == pytest.approx(1e9 * sorted(rows[1].seconds)[2] / 4_000)


def test_the_scaling_table_is_printed(monkeypatch):
    monkeypatch.setattr(scaling, "SIZES", (1_000, 2_000))
    done = lamp("bench", "prune", "--scaling")
    assert done.exit_code == 0, done.output
    assert "1,000" in done.stdout
    assert "1.00" in done.stdout


@pytest.mark.parametrize(("load", "warned"), [(0.2, False), (5.6, True), (None, False)])
def test_a_busy_machine_is_told_of_before_times_are_shown(monkeypatch, load, warned):
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(machine, "load_average", lambda: load)
    done = lamp("bench", "prune", "--quick", "--dtype", "float32", "--json")
    assert done.exit_code == 0, done.output
    assert ("warning: this machine is busy (load 5.6 on 2 cores)" in done.stderr) == warned
    assert json.loads(done.stdout)["machine"]["load_before"] == load


def test_threads_are_limited_while_measuring_only():
    before = torch.get_num_threads()
    done = lamp("bench", "prune", "--quick", "--dtype", "float32", "--threads", "1", "--json")
    assert json.loads(done.stdout)["machine"]["threads"] == 1
    assert torch.get_num_threads() == before


def test_the_machine_is_described():
    about = machine.describe("cpu")
    assert about["processor"]
    assert about["torch"] == torch.__version__
