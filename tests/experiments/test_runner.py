"""Runs resume from their last whole round, wherever they were stopped, and end in the same bits."""

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lamplighter.errors import LamplighterError
from lamplighter.experiments.recipes import find_recipe
from lamplighter.experiments.runner import Request, check_request
from lamplighter.experiments.starting import Place, initial
from lamplighter.experiments.store import RECORDS, Run, append_line, find_runs, held, open_run


def state_of(run, index):
    return load_file(run.state_path(index))


def assert_same_runs(found, expected):
    for mine, other in zip(found, expected, strict=True):
        assert mine.spec == other.spec
        assert [replace(r, seconds=0) for r in mine.records] == [replace(r, seconds=0) for r in other.records]
        for record in mine.records:
            a, b = state_of(mine, record.round), state_of(other, record.round)
            assert a.keys() == b.keys()
            assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_dense_network_of_a_seed_is_trained_once_for_all_methods(tiny, run_tiny, images, silent, tmp_path):
    run_tiny(tiny("vgg16-cifar10"), images, tmp_path, methods=("lamp", "erk", "uniform"), seeds=(0, 1), rounds=(1,))
    dense = [title for title, _ in silent.phases if title.startswith("dense")]
    assert dense == ["dense, seeds 0, 1"]
    assert len(silent.records) == 2 + 6


def test_a_finished_run_is_not_made_again_and_more_rounds_are_added(tiny, run_tiny, images, silent, tmp_path):
    recipe = tiny("vgg16-cifar10")
    run_tiny(recipe, images, tmp_path / "a", rounds=(1,))
    silent.phases.clear()
    run_tiny(recipe, images, tmp_path / "a", rounds=(1,))
    assert silent.phases == []
    piecewise = run_tiny(recipe, images, tmp_path / "a", rounds=(1, 2, 3))
    assert [title.split(",")[0] for title, _ in silent.phases] == ["round 2", "round 3"]
    at_once = run_tiny(recipe, images, tmp_path / "b", rounds=(1, 2, 3))
    assert_same_runs(piecewise, at_once)


def test_how_many_train_side_by_side_changes_nothing_on_a_cpu(tiny, run_tiny, images, tmp_path):
    recipe = tiny("vgg16-cifar10")
    one = run_tiny(recipe, images, tmp_path / "a", rounds=(1,), together=1)
    two = run_tiny(recipe, images, tmp_path / "b", rounds=(1,), together=2)
    for mine, other in zip(one, two, strict=True):
        for record in mine.records:
            a, b = state_of(mine, record.round), state_of(other, record.round)
            assert all(torch.equal(a[name], b[name]) for name in a)


def test_pruned_weights_are_zero_and_stay_pruned_from_round_to_round(tiny, run_tiny, images, tmp_path):
    _, lamp, _ = run_tiny(tiny("vgg16-cifar10"), images, tmp_path, rounds=(1, 2))
    place = Place(tmp_path, images, torch.device("cpu"))
    models = [initial(place, lamp.spec) for _ in range(2)]
    first, second = (lamp.load(index, model) for index, model in enumerate(models, start=1))
    for name, mask in second.items():
        assert not (mask & ~first[name]).any()
        assert not models[1].get_parameter(name)[~mask].any()
    assert second.total_kept < first.total_kept


def test_rewinding_returns_to_the_early_step_of_the_same_training(tiny, run_tiny, images, tmp_path):
    recipe = tiny("vgg16-cifar10-rewind", dense=3, retrain=0)
    dense, lamp, _ = run_tiny(recipe, images, tmp_path, rounds=(1,))
    early = load_file(Run(dense.spec, dense.folder / "rewind").state_path(1))
    place = Place(tmp_path, images, torch.device("cpu"))
    model = initial(place, lamp.spec)
    masks = lamp.load(1, model)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in state.items():
        expected = early[name] if name not in masks else torch.where(masks[name], early[name], 0)
        assert torch.equal(tensor, expected), name
    one_step = replace(recipe, spec=replace(recipe.spec, dense=replace(recipe.spec.dense, steps=1), plan="iterative"))
    shorter = run_tiny(one_step, images, tmp_path / "b", methods=("lamp",), rounds=(1,))[0]
    assert all(torch.equal(early[name], tensor) for name, tensor in state_of(shorter, 0).items())


def test_one_shot_rounds_all_start_from_the_dense_network(tiny, run_tiny, images, tmp_path):
    recipe = tiny("vgg16-cifar10-oneshot", retrain=0)
    dense, lamp, _ = run_tiny(recipe, images, tmp_path, rounds=(12, 14))
    weights = state_of(dense, 0)
    place = Place(tmp_path, images, torch.device("cpu"))
    for index in (12, 14):
        model = initial(place, lamp.spec)
        masks = lamp.load(index, model)
        for name, mask in masks.items():
            assert torch.equal(model.get_parameter(name), torch.where(mask, weights[name], 0))


@pytest.mark.parametrize("torn", ["", '{"round": 2, "kept": 1', "\x00\x00"])
def test_half_a_record_is_no_round(tiny, run_tiny, images, tmp_path, torn):
    recipe = tiny("vgg16-cifar10")
    whole = run_tiny(recipe, images, tmp_path / "whole", rounds=(1, 2))
    runs = run_tiny(recipe, images, tmp_path / "cut", rounds=(1, 2))
    for run in runs:
        path = run.folder / RECORDS
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:-1]) + torn)
        assert [record.round for record in run.records] == list(range(run.spec.method != "dense", len(lines)))[
            : len(lines) - 1
        ]
    assert_same_runs(run_tiny(recipe, images, tmp_path / "cut", rounds=(1, 2)), whole)


def test_a_record_is_added_behind_the_last_whole_line(tmp_path):
    path = tmp_path / "lines"
    append_line(path, "one\n")
    with path.open("a") as file:
        file.write("tw")
    append_line(path, "three\n")
    assert path.read_text() == "one\nthree\n"


def test_a_run_that_somebody_works_on_is_refused(tiny, run_tiny, images, tmp_path):
    recipe = tiny("vgg16-cifar10")
    runs = run_tiny(recipe, images, tmp_path, rounds=(1,))
    with held(runs[1]), pytest.raises(LamplighterError, match="another process is working on"):
        run_tiny(recipe, images, tmp_path, rounds=(1, 2))
    run_tiny(recipe, images, tmp_path, rounds=(1, 2))


def test_runs_are_found_with_their_specs(tiny, run_tiny, images, tmp_path):
    runs = run_tiny(tiny("vgg16-cifar10"), images, tmp_path, rounds=(1,))
    found = find_runs(tmp_path)
    assert {run.spec.id for run in found} == {run.spec.id for run in runs}
    assert {run.folder for run in found} == {run.folder for run in runs}
    assert open_run(tmp_path, runs[1].spec).records == runs[1].records


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": (2, 3)}, "none can be left out"),
        ({"rounds": ()}, "nothing to do"),
        ({"methods": ()}, "nothing to do"),
        ({"rounds": (0, 1)}, "expected 1 or more"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(changes, message):
    request = replace(Request(find_recipe("vgg16-cifar10"), ("lamp",), (0,), (1, 2)), **changes)
    with pytest.raises(LamplighterError, match=message):
        check_request(request)


COMMAND = """
import sys
from pathlib import Path
import torch
from lamplighter.data.prepare import load
from lamplighter.experiments.recipes import Recipe
from lamplighter.experiments.runner import Request, carry_out
from lamplighter.experiments.spec import Spec
from lamplighter.experiments.starting import Place
import json

class Silent:
    def phase(self, title, steps): print(title, flush=True)
    def step(self, done): pass
    def finished(self, run, record): pass

torch.set_num_threads(1)
spec = Spec.from_json(json.loads(sys.argv[1]))
request = Request(Recipe(spec, ""), ("lamp", "erk"), (0,), (1, 2, 3))
carry_out(request, Place(Path(sys.argv[3]), load("cifar10", sys.argv[2]), torch.device("cpu")), Silent())
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_moment_it_ends_in_the_same_bits(tiny, run_tiny, images, tmp_path, seed):
    recipe = tiny("vgg16-cifar10", dense=20, retrain=20)
    whole = run_tiny(recipe, images, tmp_path / "whole", rounds=(1, 2, 3))
    arguments = [json.dumps(recipe.spec.to_json()), str(tmp_path / "prepared"), str(tmp_path / "killed")]
    command = [sys.executable, "-c", COMMAND, *arguments]
    chance = random.Random(seed)
    killed = 0
    while True:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
            process.stdout.readline()  # it has begun to train
            time.sleep(chance.uniform(0.0, 0.4))
            if killed == 4 or process.poll() is not None:
                process.communicate(timeout=100)
                assert process.returncode == 0
                break
            process.kill()
            killed += 1
    found = [open_run(tmp_path / "killed", run.spec) for run in whole]
    assert_same_runs(found, whole)
    assert not list(Path(tmp_path / "killed").rglob("*.tmp"))
