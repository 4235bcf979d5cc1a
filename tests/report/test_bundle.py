"""The bundle: which files a folder of runs is worth."""

from dataclasses import replace

import pytest

from lamplighter.experiments.recipes import find_recipe
from lamplighter.experiments.store import find_runs
from lamplighter.report.bundle import contents, sections
from lamplighter.report.results import collect
from made_runs import SIZES, SPEC, make_runs

TABLE = ("table.md", "table.tex", "table.csv")


def files(root):
    """Recipe -> the endings of its files, and their contents."""
    results = collect(find_runs(root))
    made = {}
    for section in sections(results):
        found = contents(section, results)
        made[section.results.spec.recipe] = {n.removeprefix(f"{section.stem}-"): each for n, each in found.items()}
    return made


def both(*names):
    return [f"{name}.{kind}" for name in names for kind in ("png", "pdf")]


def test_a_recipe_gets_its_table_and_its_figures(tmp_path):
    make_runs(tmp_path, SPEC, {0: 0.95}, {"lamp": {0: {1: 0.9, 2: 0.9, 3: 0.8}}})
    made = files(tmp_path)["mine"]
    assert list(made) == [*TABLE, *both("tradeoff", "layers")]
    kinds = {"png": b"\x89PNG", "pdf": b"%PDF", "md": b"### mine: 500", "tex": b"% \\use", "csv": b"recipe,"}
    assert all(content.startswith(kinds[name.rpartition(".")[2]]) for name, content in made.items())


@pytest.mark.parametrize("pruned", [{"lamp": {0: {1: 0.9, 2: 0.9}}}, {"uniform": {0: {3: 0.9}}}])
def test_layers_need_a_density_and_a_method_of_the_papers_figure(tmp_path, pruned):
    make_runs(tmp_path, SPEC, {0: 0.95}, pruned)
    assert list(files(tmp_path)["mine"]) == [*TABLE, *both("tradeoff")]


def test_dense_networks_alone_get_a_table(tmp_path):
    make_runs(tmp_path, SPEC, {0: 0.95}, {})
    assert list(files(tmp_path)["mine"]) == list(TABLE)


def test_iteration_is_drawn_once_beside_the_iterative_runs(tmp_path):
    make_runs(tmp_path, SPEC, {}, {"lamp": {0: {1: 0.9, 2: 0.8}}})
    make_runs(tmp_path, replace(SPEC, recipe="once", plan="one-shot"), {}, {"lamp": {0: {2: 0.7}}})
    made = files(tmp_path)
    assert list(made["mine"]) == [*TABLE, *both("tradeoff", "iteration")]
    assert list(made["once"]) == [*TABLE, *both("tradeoff")]


@pytest.mark.parametrize("method", ["erk", "lamp"])
def test_iteration_needs_a_method_and_a_round_that_both_have(tmp_path, method):
    make_runs(tmp_path, SPEC, {}, {"lamp": {0: {1: 0.9, 2: 0.8}}})
    index = 2 if method == "erk" else 4
    make_runs(tmp_path, replace(SPEC, recipe="once", plan="one-shot"), {}, {method: {0: {index: 0.7}}})
    assert list(files(tmp_path)["mine"]) == [*TABLE, *both("tradeoff")]


def test_a_profile_gets_its_peaks_alone(tmp_path):
    recipe = find_recipe("resnet50-imagenet-profile")
    pruned = {method: {0: dict.fromkeys(recipe.rounds, 0.0)} for method in recipe.methods}
    make_runs(tmp_path, recipe.spec, {}, pruned, metric="none", sizes={"conv1.weight": 10, **SIZES})
    assert list(files(tmp_path)["resnet50-imagenet-profile"]) == both("peaks")


def test_the_same_records_make_the_same_bytes(tmp_path):
    make_runs(tmp_path, SPEC, {0: 0.95}, {"lamp": {0: {1: 0.9, 3: 0.8}}})
    assert files(tmp_path) == files(tmp_path)
