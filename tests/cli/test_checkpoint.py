"""`lamp prune`, `lamp plan` and `lamp inspect`: what they print, and what they say of mistakes."""

import io
import json

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import lamplighter as ll
from lamplighter.checkpoint.tables import grouped, shown_bytes, text_table
from lamplighter.cli.app import app


def lamp(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def source(tmp_path):
    """A checkpoint of two layers and what does not count."""
    torch.manual_seed(0)
    tensors = {
        "embed.weight": torch.randn(8, 4),
        "layers.0.fc.weight": torch.randn(8, 8),
        "layers.1.fc.weight": 3 * torch.randn(8, 8).bfloat16(),
        "norm.weight": torch.zeros(8),
    }
    save_file(tensors, tmp_path / "in.safetensors")
    return tmp_path / "in.safetensors"


def test_prune_shows_what_was_chosen_asked_and_reached(source, tmp_path):
    done = lamp("prune", source, "-o", tmp_path / "out.safetensors", "--sparsity", 0.5)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["layer", "shape", "dtype", "kept", "of", "density"]
    assert [line.split()[0] for line in lines[2:4]] == ["layers.0.fc.weight", "layers.1.fc.weight"]
    assert lines[5].split() == ["total", "64", "128", "50.00", "%"]
    assert "sparsity asked 0.5, reached 0.5" in done.stdout
    assert "2 layers chosen, 2 other tensors left as they are" in done.stdout
    assert ll.Checkpoint(tmp_path / "out.safetensors").keys() == ll.Checkpoint(source).keys()


def test_prune_as_json_is_the_report(source, tmp_path):
    done = lamp("prune", source, "-o", tmp_path / "out.safetensors", "--sparsity", 0.25, "--exclude", "*.0.*", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["total"], report["kept"], report["reached"]) == (64, 48, 0.25)
    assert [layer["name"] for layer in report["layers"]] == ["layers.1.fc.weight"]
    assert done.stderr == ""


def test_a_dry_run_writes_nothing(source, tmp_path):
    for out in ([], ["-o", tmp_path / "out.safetensors"]):
        done = lamp("prune", source, *out, "--sparsity", 0.5, "--dry-run")
        assert done.exit_code == 0, done.output
        assert "nothing written" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


def test_patterns_include_and_threads(source, tmp_path):
    out = tmp_path / "out.safetensors"
    done = lamp(
        "prune", source, "-o", out, "--sparsity", 0.5, "--pattern", "2:4", "--method", "uniform",
        "--include", "embed.*", "--include", "*.fc.weight", "--threads", 1,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert 'uniform, pattern "2:4"' in done.stdout
    for name in ("embed.weight", "layers.0.fc.weight"):
        assert (ll.Checkpoint(out)[name].view(-1, 4).count_nonzero(1) == 2).all()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prune", "{in}", "--sparsity", "0.5"], "no place is named for the result"),
        (["prune", "{in}", "-o", "{in}", "--sparsity", "0.5"], "is the checkpoint that is read"),
        (["prune", "{in}", "-o", "{dir}/out.bin", "--sparsity", "0.5"], "is no name for a safetensors file"),
        (["prune", "{in}", "-o", "{dir}/out.safetensors", "--sparsity", "1.5"], "sparsity is 1.5"),
        (["prune", "{in}", "-o", "{dir}/o.safetensors", "--sparsity", "0.5", "--method", "lmap"], "unknown method"),
        (["prune", "{in}", "-o", "{dir}/o.safetensors", "--sparsity", "0.5", "--pattern", "5:4"], "unknown pattern"),
        (["prune", "{in}", "-o", "{dir}/o.safetensors", "--sparsity", "0.5", "--include", "x"], "matches no parameter"),
        (["prune", "{dir}/absent", "-o", "{dir}/o.safetensors", "--sparsity", "0.5"], "there is no file or folder"),
        (["plan", "{in}", "--sparsity", "0.5", "--method", "lamp", "--method", "lamp"], "named twice"),
        (["plan", "{in}", "--sparsity", "0.5", "--plot", "layers.txt"], "no name for a picture"),
        (["inspect", "{dir}"], "cannot be read as safetensors"),
    ],
)
def test_mistakes_end_in_an_error_and_a_hint(source, tmp_path, arguments, said):
    (tmp_path / "broken.safetensors").write_bytes(b"broken")
    before = sorted(tmp_path.iterdir())
    done = lamp(*(part.replace("{in}", str(source)).replace("{dir}", str(tmp_path)) for part in arguments))
    assert done.exit_code == 1
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: ")
    assert sorted(tmp_path.iterdir()) == before


def test_plan_puts_methods_side_by_side(source, tmp_path):
    methods = ["--method", "lamp", "--method", "erk"]
    done = lamp("plan", source, "--sparsity", 0.5, *methods)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].split() == [
        "layer",
        "shape",
        "dtype",
        "weights",
        "lamp",
        "density",
        "erk",
        "density",
    ]
    plan = json.loads(lamp("plan", source, "--sparsity", 0.5, *methods, "--json").stdout)
    assert plan["kept"] == {"lamp": 64, "erk": 64}
    weights = {layer["name"]: ll.Checkpoint(source)[layer["name"]] for layer in plan["layers"]}
    for method in ("lamp", "erk"):
        expected = ll.allocate(weights, 0.5, method)
        assert {layer["name"]: layer["kept"][method] for layer in plan["layers"]} == expected
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


@pytest.mark.parametrize("layers", [3, 60])
def test_plan_draws_a_picture(tmp_path, layers):
    save_file({f"layers.{n}.weight": torch.randn(4, 4) for n in range(layers)}, tmp_path / "in.safetensors")
    done = lamp("plan", tmp_path / "in.safetensors", "--sparsity", 0.5, "--method", "lamp", "--method", "erk",
                "--plot", tmp_path / "layers.png")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")


def test_inspect_shows_zeros_magnitudes_and_what_counts(source):
    done = lamp("inspect", source)
    assert done.exit_code == 0, done.output
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()[2:6]}
    assert rows["norm.weight"][3:] == ["100.00", "%"]
    assert rows["layers.0.fc.weight"][1:6] == ["8x8", "F32", "1", "0.00", "%"]
    assert "4 tensors; 2 layers of 128 weights count by default" in done.stdout
    found = {tensor["name"]: tensor for tensor in json.loads(lamp("inspect", source, "--json").stdout)["tensors"]}
    weight = ll.Checkpoint(source)["layers.0.fc.weight"].abs()
    assert found["layers.0.fc.weight"]["largest"] == pytest.approx(weight.max().item(), rel=0.01)
    assert found["layers.0.fc.weight"]["median"] == pytest.approx(weight.median().item(), rel=0.01)
    assert found["layers.1.fc.weight"]["largest"] == ll.Checkpoint(source)["layers.1.fc.weight"].abs().max().item()


def test_inspect_names_every_damaged_file(tmp_path):
    for name in ("a", "b", "c"):
        save_file({f"{name}.weight": torch.ones(4, 4)}, tmp_path / f"{name}.safetensors")
    for name in ("a", "c"):
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(path.read_bytes()[:-8])
    done = lamp("inspect", tmp_path)
    assert done.exit_code == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert ["a.safetensors" in errors[0], "c.safetensors" in errors[1], len(errors)] == [True, True, 2]
    assert "'a.weight' ends 8 bytes behind the end of the file" in errors[0]


def test_inspect_looks_at_quantised_checkpoints_and_broken_values(tmp_path):
    save_file(
        {"fc.weight": torch.zeros(4, 4, dtype=torch.int8), "a": torch.tensor([float("nan"), 1.0])},
        tmp_path / "x.safetensors",
    )
    done = lamp("inspect", tmp_path / "x.safetensors")
    assert done.exit_code == 0, done.output
    assert "NaN or infinite values: a (1)" in done.stdout
    assert "cannot be pruned as it is: layer 'fc.weight'" in done.stdout


def test_many_layers_share_rows(tmp_path):
    save_file({f"layers.{n}.fc.weight": torch.randn(4, 4) for n in range(200)}, tmp_path / "x.safetensors")
    for command in (["prune", "--dry-run", "--sparsity", 0.5], ["plan", "--sparsity", 0.5], ["inspect"]):
        done = lamp(command[0], tmp_path / "x.safetensors", *command[1:])
        assert done.exit_code == 0, done.output
        assert "layers.*.fc.weight (200)" in done.stdout
        assert len(done.stdout.splitlines()) < 12


def test_tables_are_aligned():
    assert text_table(("a", "b"), [("xx", "1"), ("y", "10")], left=1, total=False) == "a    b\n------\nxx   1\ny   10"
    assert grouped([]) == []
    assert [shown_bytes(n) for n in (0, 999, 1000, 2_500_000_000)] == ["0 B", "999 B", "1.00 kB", "2.50 GB"]


@pytest.mark.filterwarnings("ignore:this machine is busy")
def test_bench_checkpoint_measures_times_and_memory(tmp_path):
    done = lamp("bench", "checkpoint", "--size", 0.005, "--repeats", 1, "--folder", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert [row["contender"] for row in record["rows"]] == ["lamplighter", "copy", "copy, flushed to the disk"]
    assert record["times_copy"] > 0
    assert 0 < record["peak_extra_bytes"] < 250e6
    assert list(tmp_path.iterdir()) == []


def test_names_that_standard_output_cannot_show_are_escaped(tmp_path, monkeypatch):
    save_file({"café世.weight": torch.randn(4, 4)}, tmp_path / "in.safetensors")
    for words in (
        ["prune", "-o", tmp_path / "out.safetensors", "--sparsity", "0.5"],
        ["plan", "--sparsity", "0.5"],
        ["inspect"],
    ):
        shown = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
        monkeypatch.setattr("sys.stdout", shown)
        app([words[0], str(tmp_path / "in.safetensors"), *map(str, words[1:])], standalone_mode=False)
        monkeypatch.undo()
        shown.flush()
        assert b"caf\xe9\\u4e16.weight" in shown.buffer.getvalue()


@pytest.mark.filterwarnings("default")
def test_what_is_left_out_or_carried_over_unpruned_is_said(tmp_path):
    (tmp_path / "in" / "2_Dense").mkdir(parents=True)
    torch.save({"model": {"a.weight": torch.randn(4, 4)}, "epoch": 3}, tmp_path / "in" / "x.pt")
    save_file({"x.weight": torch.ones(2, 2)}, tmp_path / "in" / "2_Dense" / "model.safetensors")
    done = lamp("prune", tmp_path / "in", "-o", tmp_path / "out", "--sparsity", 0.5)
    assert done.exit_code == 0, done.output
    assert "warning: carried over unpruned: 2_Dense/model.safetensors" in done.stderr
    assert "warning: no tensors of the model, and left out: x.pt: epoch" in done.stderr
    assert "no tensors of the model: x.pt: epoch" in lamp("inspect", tmp_path / "in").stdout
