"""Tables: to the letter, and bold where the paper would print bold."""

import csv
import io
import math
from dataclasses import replace

import pytest

from lamplighter.experiments.recipes import find_recipe
from lamplighter.experiments.store import find_runs
from lamplighter.report import tables
from lamplighter.report.paper import paper_table
from lamplighter.report.results import collect
from lamplighter.report.tables import default_columns, within_reach
from made_runs import SPEC, make_runs

VGG = find_recipe("vgg16-cifar10", 0.05, "bf16").spec

# The methods in bold, column by column, read off the paper: g(lobal), u(niform), + (uniform+), e(rk), l(amp).
BOLD = {
    "transformer-xl-ptb": "guel guel gul gl gl gl l l l l",
    "transformer-xl-wikitext2": "gul guel gl gl gl l l l l l",
    "vgg16-cifar10": "el el el l l l l l l l",
    "resnet20-cifar10": "el e el el el el el el el el",
    "densenet121-cifar10": "l l l l l l l l l l",
    "efficientnet-b0-cifar10": "gel e el l l l l l l l",
    "vgg16-svhn": "el el l l l l l l l l",
    "vgg16-cifar100": "gu+el l l el el l l l l l",
}


def only(root):
    (found,) = collect(find_runs(root))
    return found


def spread(mean, std):
    """Two seeds with that mean and sample standard deviation."""
    return {0: mean - std / math.sqrt(2), 1: mean + std / math.sqrt(2)}


def make_column(root, cells, **about):
    """After round 1, each method at (mean, std)."""
    pruned = {method: {seed: {1: value} for seed, value in spread(*cell).items()} for method, cell in cells.items()}
    make_runs(root, SPEC, {}, pruned, **about)
    return only(root)


@pytest.fixture
def example(tmp_path):
    """Rounds 12 and 20 of VGG-16: two seeds of lamp, of erk one that stopped early, and one of a method of our own."""
    pruned = {
        "lamp": {0: {12: 0.92, 20: 0.91}, 1: {12: 0.924, 20: 0.9}},
        "erk": {0: {12: 0.921}},
        "mine": {0: {12: 0.9, 20: 0.9}, 1: {12: 0.91, 20: 0.8}},
    }
    make_runs(tmp_path, VGG, {0: 0.93, 1: 0.94}, pruned)
    return only(tmp_path)


def test_markdown_to_the_letter(example):
    shown = tables.table(example, "VGG-16", columns=(12, 20))
    assert (
        tables.markdown(shown)
        == """\
### VGG-16

| weights left (%) | 6.87 | 1.15 |
| --- | ---: | ---: |
| erk | **92.10 (n=1)** | - |
| *erk, paper* | *92.34 ± 0.25* | *90.55 ± 0.19* |
| mine | 90.50 ± 0.71 | 85.00 ± 7.07 |
| lamp | **92.20 ± 0.28** | **90.50 ± 0.71** |
| *lamp, paper* | *92.24 ± 0.24* | *91.07 ± 0.40* |

Test accuracy (%), mean ± sample standard deviation over 1 to 2 seeds; columns: weights left (%). \
Bold: the best of a column, and what is within one standard deviation of the best. \
In italics the paper's own values: five trials at full length. Dense network: 93.50 ± 0.71 (n=2). \
Training: 2,500 steps, then 2,000 after each pruning (0.05 of the full length), batches of 100, adamw, bf16. \
Tested after the last step of every round, on NVIDIA H200, 2 networks side by side, 0.55 h of training.
"""
    )


def test_latex_to_the_letter(example):
    lines = tables.latex(tables.table(example, "A & B_c", columns=(12, 20))).splitlines()
    assert lines[:3] == [
        "% \\usepackage{booktabs}",
        "\\begin{table*}[ht]",
        "\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}",
    ]
    assert lines[3].startswith(
        "\\caption{A \\& B\\_c. Test accuracy (\\%), mean $\\pm$ sample standard deviation over 1"
    )
    assert lines[3].endswith("h of training.}")
    assert lines[4:] == [
        "\\begin{tabular}{lrr}",
        "\\toprule",
        "weights left & 6.87\\,\\% & 1.15\\,\\% \\\\",
        "\\midrule",
        "erk & \\textbf{92.10}{\\scriptsize (n=1)} & - \\\\",
        "\\quad\\textit{paper} & \\textit{92.34}{\\scriptsize $\\pm$ 0.25} & "
        "\\textit{90.55}{\\scriptsize $\\pm$ 0.19} \\\\",
        "mine & 90.50{\\scriptsize $\\pm$ 0.71} & 85.00{\\scriptsize $\\pm$ 7.07} \\\\",
        "lamp & \\textbf{92.20}{\\scriptsize $\\pm$ 0.28} & \\textbf{90.50}{\\scriptsize $\\pm$ 0.71} \\\\",
        "\\quad\\textit{paper} & \\textit{92.24}{\\scriptsize $\\pm$ 0.24} & "
        "\\textit{91.07}{\\scriptsize $\\pm$ 0.40} \\\\",
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table*}",
    ]


def test_csv_has_every_round_and_raw_numbers(example):
    text = tables.comma_separated(example, "VGG-16, short")
    assert text.splitlines()[0] == (
        "recipe,setting,metric,method,round,surviving_percent,mean,std,n,paper_mean,paper_std"
    )
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["method"], row["round"], row["n"]) for row in rows] == [
        ("dense", "0", "2"),
        ("erk", "12", "1"),
        ("mine", "12", "2"),
        ("mine", "20", "2"),
        ("lamp", "12", "2"),
        ("lamp", "20", "2"),
    ]
    erk, lamp = rows[1], rows[4]
    assert (erk["recipe"], erk["setting"], erk["metric"]) == ("vgg16-cifar10", "VGG-16, short", "accuracy")
    assert (erk["mean"], erk["std"], erk["paper_mean"], erk["paper_std"]) == ("92.10000000000001", "", "92.34", "0.25")
    assert float(lamp["std"]) == pytest.approx(0.4 / math.sqrt(2), rel=1e-9)
    assert float(lamp["surviving_percent"]) == pytest.approx(100 * 0.8**12, rel=1e-7)
    assert (rows[2]["paper_mean"], rows[2]["paper_std"]) == ("", "")


@pytest.mark.parametrize("recipe", BOLD)
def test_bold_is_where_the_paper_has_it(tmp_path, recipe):
    spec, paper = find_recipe(recipe).spec, paper_table(recipe)
    factor, metric = (1, "perplexity") if recipe.startswith("transformer") else (100, "accuracy")
    for method, cells in paper.values.items():
        seeds = {seed: {i: spread(*c)[seed] / factor for i, c in cells.items()} for seed in (0, 1)}
        make_runs(tmp_path, spec, {}, {method: seeds}, metric=metric)
    found = only(tmp_path)
    letters = {"global": "g", "uniform": "u", "uniform+": "+", "erk": "e", "lamp": "l"}
    bold = [within_reach(found, index) for index in paper.rounds]
    shown = ["".join(letters[method] for method in found.methods if method in column) for column in bold]
    assert shown == BOLD[recipe].split()


def test_the_reach_is_the_standard_deviation_of_the_best_alone(tmp_path):
    found = make_column(tmp_path, {"lamp": (0.90, 0.01), "erk": (0.891, 0.0), "global": (0.88, 0.5)})
    assert within_reach(found, 1) == {"lamp", "erk"}


def test_of_perplexities_the_lowest_is_best(tmp_path):
    found = make_column(tmp_path, {"lamp": (70.0, 1.0), "erk": (70.9, 0.1), "global": (71.1, 9.0)}, metric="perplexity")
    assert within_reach(found, 1) == {"lamp", "erk"}


def test_one_seed_has_no_reach_and_equals_share(tmp_path):
    make_runs(tmp_path, SPEC, {0: 0.9}, {"lamp": {0: {1: 0.9}}, "erk": {0: {1: 0.9}}, "er": {0: {1: 0.8999}}})
    assert within_reach(only(tmp_path), 1) == {"lamp", "erk"}


def test_what_diverged_is_never_best(tmp_path):
    pruned = {"lamp": {0: {1: 80.0}}, "global": {0: {1: math.nan}}, "er": {0: {1: math.inf}}}
    make_runs(tmp_path, SPEC, {}, pruned, metric="perplexity")
    found = only(tmp_path)
    assert within_reach(found, 1) == {"lamp"}
    rows = tables.table(found, "t").rows
    assert [rows[method][0].text for method in ("lamp", "global", "er")] == ["80.00", "nan", "inf"]


def test_the_dense_network_has_no_best(tmp_path):
    make_runs(tmp_path, SPEC, {0: 0.9}, {"lamp": {0: {1: 0.9}}, "erk": {0: {1: 0.9}}})
    shown = tables.table(only(tmp_path), "t", columns=(0, 1))
    assert shown.heads == ["100", "80.0"]
    assert [entry.bold for entry in shown.rows["lamp"]] == [False, True]


@pytest.mark.parametrize(
    ("spec", "rounds", "shown"),
    [
        (VGG, range(1, 31), tuple(range(12, 31, 2))),  # the paper's
        (VGG, range(1, 23), (12, 14, 16, 18, 20, 22)),  # most of the paper's
        (VGG, range(1, 14), (3, 6, 9, 12, 13)),  # one of the paper's: every third and the last
        (VGG, range(1, 8), (1, 2, 3, 4, 5, 6, 7)),  # few
        (SPEC, range(1, 12), (3, 6, 9, 11)),
        (replace(VGG, recipe="vgg16-cifar10-oneshot", plan="one-shot"), range(12, 31, 2), tuple(range(12, 31, 2))),
    ],
)
def test_columns_are_the_papers_if_they_are_reached(tmp_path, spec, rounds, shown):
    make_runs(tmp_path, spec, {}, {"lamp": {0: dict.fromkeys(rounds, 0.9)}})
    assert default_columns(only(tmp_path)) == shown


def test_only_iterative_runs_are_set_beside_the_paper(tmp_path):
    make_runs(tmp_path, replace(VGG, plan="one-shot"), {}, {"lamp": {0: {12: 0.9}}})
    shown = tables.table(only(tmp_path), "t")
    assert shown.rows["lamp"][0].paper is None
    assert "italics" not in " ".join(shown.notes)


def test_runs_at_another_rate_are_compared_where_densities_meet(tmp_path):
    make_runs(tmp_path, replace(VGG, rate=1 - 0.8**4), {}, {"lamp": {0: {3: 0.9, 4: 0.9, 5: 0.8}}})
    shown = tables.table(only(tmp_path), "t", columns=(3, 4, 5))
    assert shown.heads == ["6.87", "2.81", "1.15"]
    assert [entry.paper.mean for entry in shown.rows["lamp"]] == [92.24, 91.71, 91.07]


def test_before_anything_is_pruned_there_is_the_dense_network(tmp_path):
    make_runs(tmp_path, SPEC, {0: 0.9, 1: 0.92}, {})
    text = tables.markdown(tables.table(only(tmp_path), "t"))
    assert "| weights left (%) | 100 |\n| --- | ---: |\n| dense | 91.00 ± 1.41 |\n\n" in text
    assert "Bold" not in text
