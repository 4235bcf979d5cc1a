"""The paper's tables: every number is found again, at its own density and nowhere else."""

import json
from importlib.resources import files

import pytest

from lamplighter.experiments.recipes import RECIPES, find_recipe
from lamplighter.report.paper import paper_table, round_of

RAW = json.loads(files("lamplighter.report").joinpath("paper_tables.json").read_text("utf-8"))


@pytest.mark.parametrize("recipe", RAW)
def test_every_number_is_found_at_the_round_whose_density_is_nearest(recipe):
    found = paper_table(recipe)
    for method, cells in RAW[recipe]["mean_std"].items():
        assert len(cells) == len(RAW[recipe]["surviving_percent"]) == 10
        for percent, cell in zip(RAW[recipe]["surviving_percent"], cells, strict=True):
            nearest = min((0.8**index for index in range(40)), key=lambda density: abs(100 * density - percent))
            assert found.value(method, nearest) == tuple(cell)


def test_the_tables_are_those_that_recipes_reproduce():
    assert {name for name in RECIPES if "table:" in find_recipe(name).reproduces} == set(RAW)


@pytest.mark.parametrize(
    ("recipe", "method", "index", "printed"),
    [  # first or last cell of a row, read off the paper
        ("vgg16-cifar10", "lamp", 30, (84.90, 0.59)),
        ("vgg16-cifar10", "uniform", 12, (91.47, 0.19)),
        ("resnet20-cifar10", "erk", 25, (50.90, 3.28)),
        ("densenet121-cifar10", "uniform+", 22, (58.91, 8.26)),
        ("efficientnet-b0-cifar10", "global", 4, (89.66, 0.21)),
        ("vgg16-svhn", "lamp", 12, (95.98, 0.15)),
        ("vgg16-cifar100", "global", 9, (68.02, 0.22)),
        ("transformer-xl-ptb", "lamp", 15, (91.24, 0.38)),
        ("transformer-xl-wikitext2", "uniform", 6, (87.88, 0.26)),
    ],
)
def test_columns_are_rounds(recipe, method, index, printed):
    assert paper_table(recipe).value(method, 0.8**index) == printed


def test_columns_printed_as_other_digits_are_the_same_round():
    tables = {recipe: paper_table(recipe).rounds for recipe in RAW}
    assert tables["vgg16-cifar10"] == tables["vgg16-svhn"] == tuple(range(12, 31, 2))  # 2.81 and 2.82 %
    assert tables["efficientnet-b0-cifar10"] == tuple(range(4, 23, 2))  # 10.7 %
    assert tables["transformer-xl-ptb"] == tuple(range(6, 16))  # 10.8 %


def test_a_density_near_that_of_a_round_is_not_of_that_round():
    table = paper_table("transformer-xl-ptb")
    assert round_of(1.0) == 0
    assert table.value("lamp", 0.8**6) == (71.51, 0.38)
    assert table.value("lamp", 0.64**3) == (71.51, 0.38)  # another rate, the same density
    assert table.value("lamp", 0.25) is None
    assert table.value("lamp", 0.2622) is None


def test_what_the_paper_does_not_say_is_none():
    table = paper_table("vgg16-cifar10")
    assert table.value("lamp", 0.5) is None  # between two rounds
    assert table.value("lamp", 0.8**13) is None
    assert table.value("er", 0.8**12) is None
    assert paper_table("transformer-xl-ptb").value("uniform+", 0.8**12) is None
    assert paper_table("vgg16-cifar10-oneshot") is None
