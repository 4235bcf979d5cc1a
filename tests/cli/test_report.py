"""`lamp report`: its files, its tables, its data, its errors."""

import json
import math
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from lamplighter.cli.app import app
from lamplighter.experiments.recipes import find_recipe
from lamplighter.experiments.store import SPEC as SPEC_FILE
from lamplighter.experiments.store import open_run
from made_runs import SPEC, make_run, make_runs

VGG = find_recipe("vgg16-cifar10", 0.05, "bf16").spec
PARTS = ("layers.pdf", "layers.png", "table.csv", "table.md", "table.tex", "tradeoff.pdf", "tradeoff.png")
VGG_FILES = [f"vgg16-cifar10-2500-2000-bf16-{part}" for part in PARTS]


def lamp(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture
def runs(tmp_path):
    """Two recipes: five rounds of VGG-16 from the paper's first column on, and one of our own."""
    folder = tmp_path / "runs"
    values = {12: 0.92, 14: 0.91, 16: 0.9, 18: 0.89, 20: 0.88}
    make_runs(folder, VGG, {0: 0.93}, {"uniform": {0: values}, "lamp": {0: values, 1: {12: 0.924}}})
    make_runs(folder, SPEC, {}, {"lamp": {0: {1: 0.9}}})
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_it_writes_the_files_and_prints_the_tables(runs, tmp_path):
    out = tmp_path / "new" / "folder"
    done = lamp(runs, "--out", out, "--recipe", "vgg16-cifar10")
    assert done.exit_code == 0, done.output
    assert names(out) == VGG_FILES
    assert sorted(done.stderr.split()) == [str(out / name) for name in VGG_FILES]
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["vgg16-cifar10:", "2,500", "+", "2,000", "steps,", "bf16"] in rows
    assert ["left", "(%)", "uniform", "lamp"] in rows
    first = rows.index(["6.87", "92.00", "92.20±0.28"])
    assert rows[first + 1 : first + 4] == [["(n=1)", "92.24±0.24"], ["91.47±0.19"], ["4.40", "91.00", "91.00"]]
    assert "Training: 2,500 steps, then 2,000 after each pruning" in " ".join(done.stdout.split())


def test_all_recipes_are_reported_unless_some_are_named(runs, tmp_path):
    assert lamp(runs, "-o", tmp_path / "out").exit_code == 0
    assert {name.partition("-")[0] for name in names(tmp_path / "out")} == {"mine", "vgg16"}
    assert lamp(runs, "-o", tmp_path / "both", "-r", "mine", "-r", "vgg16-cifar10").exit_code == 0
    assert names(tmp_path / "both") == names(tmp_path / "out")


def test_json_is_all_that_stdout_gets(runs, tmp_path):
    done = lamp(runs, "-o", tmp_path / "out", "-r", "vgg16-cifar10", "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert sorted(data["files"]) == [str(tmp_path / "out" / name) for name in VGG_FILES]
    (found,) = data["results"]
    assert found["title"] == "vgg16-cifar10: 2,500 + 2,000 steps, bf16"
    assert found["settings"]["retrain"]["steps"] == 2000
    assert not {"method", "seed"} & set(found["settings"])
    rows = {(row["method"], row["round"]): row for row in found["rows"]}
    assert len(rows) == 1 + 5 + 5
    lamp_first = rows["lamp", 12]
    assert (lamp_first["n"], lamp_first["paper_mean"], lamp_first["paper_std"]) == (2, 92.24, 0.24)
    assert lamp_first["values"] == {"0": 92.0, "1": pytest.approx(92.4)}
    assert rows["lamp", 14]["std"] is None
    assert rows["dense", 0]["mean"] == 93.0


def test_json_has_null_for_what_diverged(tmp_path):
    make_runs(tmp_path / "runs", SPEC, {}, {"lamp": {0: {1: math.inf}, 1: {1: 70.0}}}, metric="perplexity")
    done = lamp(tmp_path / "runs", "-o", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout, parse_constant=pytest.fail)["results"][0]["rows"]
    assert (row["mean"], row["std"], row["values"]) == (None, None, {"0": None, "1": 70.0})


def test_networks_that_were_not_tested_get_a_figure_and_no_table(tmp_path):
    recipe = find_recipe("resnet50-imagenet-profile")
    make_runs(tmp_path / "runs", recipe.spec, {}, {"lamp": {0: dict.fromkeys(recipe.rounds, 0.0)}}, metric="none")
    done = lamp(tmp_path / "runs", "-o", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert names(tmp_path / "out") == [f"resnet50-imagenet-profile-peaks.{kind}" for kind in ("pdf", "png")]
    assert done.stdout == "resnet50-imagenet-profile: not retrained: nothing was tested; see its figure.\n"
    assert json.loads(lamp(tmp_path / "runs", "-o", tmp_path / "out", "--json").stdout)["results"][0]["rows"] == []


def test_a_folder_without_runs_is_an_error_with_a_hint(tmp_path):
    done = lamp(tmp_path, "-o", tmp_path / "out")
    assert done.exit_code == 1
    assert done.stderr == (
        f"error: there are no runs below {tmp_path}\nhint: give the folder that `lamp run` wrote its runs to\n"
    )
    missing = lamp(tmp_path / "none", "-o", tmp_path / "out")
    assert missing.exit_code == 1
    assert missing.stderr.startswith(f"error: {tmp_path / 'none'} is not a folder\nhint: ")
    assert names(tmp_path) == []


def test_runs_that_have_not_finished_a_round_are_an_error(tmp_path):
    open_run(tmp_path / "runs", replace(SPEC, method="lamp"))
    done = lamp(tmp_path / "runs", "-o", tmp_path / "out")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: none of the 1 runs below {tmp_path / 'runs'} has finished a round\nhint: ")


def test_a_recipe_that_has_not_run_is_an_error(runs, tmp_path):
    done = lamp(runs, "-o", tmp_path / "out", "-r", "vgg16-cifar")
    assert done.exit_code == 1
    assert done.stderr == ("error: there are no runs of a recipe vgg16-cifar\nhint: did you mean vgg16-cifar10?\n")
    assert not (tmp_path / "out").exists()


def test_a_spec_of_another_version_is_an_error_that_names_it(runs, tmp_path):
    path = make_run(runs, replace(SPEC, method="erk"), {1: 0.5}).folder / SPEC_FILE
    path.write_text("{}", encoding="utf-8")
    done = lamp(runs, "-o", tmp_path / "out")
    assert done.exit_code == 1
    assert str(path) in done.stderr


def test_nothing_is_written_if_a_figure_fails(runs, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no ink")

    monkeypatch.setattr("lamplighter.report.tradeoff.tradeoff", fail)
    done = lamp(runs, "-o", tmp_path / "out")
    assert str(done.exception) == "no ink"
    assert not (tmp_path / "out").exists()


def test_an_unfinished_line_is_passed_over(runs, tmp_path):
    run = make_run(runs, replace(SPEC, method="erk"), {1: 0.5})
    with (run.folder / "rounds.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"round": 2, "kep')
    done = lamp(runs, "-o", tmp_path / "out", "-r", "mine", "--json")
    assert done.exit_code == 0, done.output
    assert [row["round"] for row in json.loads(done.stdout)["results"][0]["rows"]] == [1, 1]


def test_without_matplotlib_the_hint_names_the_extra(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("lamplighter.optional.importlib.util.find_spec", lambda name: None)
    done = lamp(runs, "-o", tmp_path / "out")
    assert done.exit_code == 1
    assert 'hint: pip install "lamplighter[report]"' in done.stderr
