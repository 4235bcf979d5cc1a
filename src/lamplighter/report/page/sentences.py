"""What the page says in words: what came out, and in what it differs from the paper."""

import math
from collections import Counter
from collections.abc import Iterator

from lamplighter.experiments.recipes import RECIPES
from lamplighter.experiments.spec import Spec
from lamplighter.report.captions import MEASURED, flat, number
from lamplighter.report.figures import percent
from lamplighter.report.paper import TRIALS
from lamplighter.report.results import Cell, Results

PLANS = {
    "iterative": "pruned round by round, trained on after each",
    "one-shot": "pruned once, trained once",
    "rewind": "pruned round by round, rewound after each",
    "untrained": "pruned before training",
    "profile": "pruned once, not retrained",
}
# Spoken of by themselves, or of no meaning for what is computed.
_APART = {"recipe", "method", "seed", "dense.steps", "retrain.steps", "dense.precision", "retrain.precision"}
_EXECUTION = ("compiled", "autotune", "graph")


def findings(results: Results) -> list[str]:
    """Who comes first where fewest weights are left, and at how many densities; nothing where nobody is compared."""
    compared = {index: found for index in results.rounds if len(found := ranked(results, index)) > 1}
    said = [_sparsest(results, index, compared[index]) for index in list(compared)[-1:]]
    firsts = Counter(found[0][0] for found in compared.values())
    if sum(firsts.values()) > 1:
        counts = ", ".join(f"{method} {count}" for method, count in firsts.most_common())
        said.append(f"Times that a method's mean is the best, out of {sum(firsts.values())} densities: {counts}.")
    return said


def ranked(results: Results, index: int) -> list[tuple[str, Cell]]:
    """The methods after a round, the best first; without those whose network diverged."""
    if results.metric == "none":
        return []
    cells = [(method, cell) for method in results.methods if (cell := results.cell(method, index)) is not None]
    finite = [(method, cell) for method, cell in cells if math.isfinite(cell.mean)]
    return sorted(finite, key=lambda item: item[1].mean, reverse=not results.lower_is_better)


def _sparsest(results: Results, index: int, found: list[tuple[str, Cell]]) -> str:
    (first, best), (second, next_best) = found[:2]
    where = f"With {percent(results.spec.density(index))} % of the weights left"
    if best.mean == next_best.mean:
        return f"{where}, {first} and {second} are level at {shown(best)}."
    extreme = "lowest" if results.lower_is_better else "highest"
    measured = f"{extreme} mean {MEASURED[results.metric]}"
    return f"{where}, {first} has the {measured}: {shown(best)}; next is {second}: {shown(next_best)}."


def shown(cell: Cell) -> str:
    """Mean, deviation and how many seeds."""
    return f"{number(cell)} (n={cell.n})"


def differences(results: Results) -> list[str]:
    """In what these runs differ from the paper's experiment; a sentence each."""
    if results.spec.recipe not in RECIPES:
        return ["This is not one of the paper's experiments."]
    recipe = RECIPES[results.spec.recipe](1.0, "fp32")
    said = list(_training(results.spec, recipe.spec))
    said += _trials(results)
    absent = [method for method in recipe.methods if method not in results.pruned]
    if absent:
        said.append(f"Not run: {', '.join(absent)}.")
    unfinished = [index for index in recipe.rounds if index not in results.rounds]
    if unfinished:
        said.append(f"{len(unfinished)} of {len(recipe.rounds)} densities are still to be made.")
    return said


def _training(spec: Spec, full: Spec) -> Iterator[str]:
    """Its length, its precision, and every other setting that is not the recipe's."""
    if spec.plan != "profile" and spec.retrain.steps != full.retrain.steps:
        share = spec.retrain.steps / full.retrain.steps
        yield (
            f"Pruned networks trained for {spec.retrain.steps:,} steps where the paper has {full.retrain.steps:,}: "
            f"{share:.3g} of the length."
        )
    precisions = dict.fromkeys([spec.dense.precision, spec.retrain.precision])
    if spec.plan != "profile" and list(precisions) != ["fp32"]:
        yield f"Trained in {' and '.join(precisions)}, the recipe in fp32."
    mine, theirs = flat(spec), flat(full)
    for name, value in mine.items():
        if name not in _APART and not name.endswith(_EXECUTION) and value != theirs.get(name):
            yield f"{name} is {value}, in the recipe {theirs.get(name)}."


def _trials(results: Results) -> list[str]:
    if results.spec.plan == "profile":
        return []
    cells = [results.cell(method, index) for method in results.methods for index in results.rounds or (0,)]
    counts = sorted({cell.n for cell in cells if cell is not None})
    if counts == [TRIALS]:
        return []
    shown = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    alone = " No deviation is known; small differences may be chance." if counts[-1] == 1 else ""
    return [f"{shown} {'seed' if shown == '1' else 'seeds'} where the paper has {TRIALS}.{alone}"]
