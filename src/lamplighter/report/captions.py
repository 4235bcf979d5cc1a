"""What stands above and below a table or a figure: which runs, at which scale, made how."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lamplighter.experiments.recipes import RECIPES
from lamplighter.experiments.spec import Spec
from lamplighter.report.figures import percent
from lamplighter.report.results import Cell, Results

MEASURED = {"accuracy": "test accuracy (%)", "perplexity": "test perplexity", "none": "nothing tested"}
_AFTER = {
    "iterative": "after each pruning",
    "one-shot": "after the one pruning",
    "rewind": "after each pruning and rewinding",
    "untrained": "after pruning the untrained network",
}
# Said in every heading, or of no meaning for what is computed.
_UNREMARKABLE = re.compile(r"recipe|method|seed|\w+\.(steps|precision|compiled|autotune|graph)")


def headings(results: Sequence[Results]) -> list[str]:
    """A title for each: the recipe, its scale, and whatever else tells it from others of the same recipe."""
    titles = []
    for each in results:
        siblings = [other.spec for other in results if other.spec.recipe == each.spec.recipe]
        mine = flat(each.spec)
        odd = [name for name in mine if len({str(flat(spec).get(name)) for spec in siblings}) > 1]
        parts = [_scale(each.spec), *(f"{name} {_plain(mine[name])}" for name in odd if not _is_unremarkable(name))]
        titles.append(f"{each.spec.recipe}: {', '.join(parts)}")
    return titles


def stems(results: Sequence[Results]) -> list[str]:
    """A file name for each, without its ending: recipe, steps and precision, and a digest where those are shared."""
    names = [_stem(each.spec) for each in results]
    count = Counter(names)
    digests = [each.spec.id.rpartition("-")[2][:6] for each in results]
    return [name if count[name] == 1 else f"{name}-{digest}" for name, digest in zip(names, digests, strict=True)]


def training(spec: Spec) -> str:
    """How long networks were trained, and how much of the full length that is.

    >>> from lamplighter.experiments.recipes import find_recipe
    >>> training(find_recipe("vgg16-cifar10", scale=0.05, precision="bf16").spec)
    '2,500 steps, then 2,000 after each pruning (0.05 of the full length), batches of 100, adamw, bf16'
    """
    if spec.plan == "profile":
        return "pruned once, not retrained"
    long = f"{spec.retrain.steps:,} steps {_AFTER[spec.plan]}"
    if spec.dense.steps:
        long = f"{spec.dense.steps:,} steps, then {spec.retrain.steps:,} {_AFTER[spec.plan]}"
    settings = spec.retrain
    return f"{long}{_fraction(spec)}, batches of {settings.batch}, {settings.optimizer}, {_precision(spec)}"


def seeds(results: Results) -> str:
    """How many networks each number is of."""
    fewest, most = _seed_counts(results)
    if most == 1:
        return "one seed"
    return f"mean ± sample standard deviation over {most if fewest == most else f'{fewest} to {most}'} seeds"


def most_seeds(results: Results) -> int:
    """The seeds of the cell that has most; one that has fewer should say so itself."""
    return _seed_counts(results)[1]


def _seed_counts(results: Results) -> tuple[int, int]:
    """The fewest and the most seeds of any cell; of the pruned networks, where there are any."""
    rounds = results.rounds or (0,)
    cells = [results.cell(method, index) for method in results.methods for index in rounds]
    counts = [cell.n for cell in cells if cell is not None]
    return min(counts), max(counts)


def notes(results: Results, with_paper: bool) -> list[str]:
    """Sentences below a table: what the numbers are, and how they were made."""
    said = [f"{MEASURED[results.metric].capitalize()}, {seeds(results)}; columns: weights left (%)."]
    if results.rounds:
        said.append("Bold: the best of a column, and what is within one standard deviation of the best.")
    if with_paper:
        said.append("In italics the paper's own values: five trials at full length.")
    dense = results.cell("dense", 0)
    if dense is not None and results.rounds:
        said.append(f"Dense network: {number(dense)} (n={dense.n}).")
    said.append(f"Training: {training(results.spec)}.")
    said.append(f"Tested after the last step of every round, {_hardware(results)}.")
    return said


def number(cell: Cell) -> str:
    """Mean and standard deviation, two decimals; the mean alone for one seed."""
    return f"{cell.mean:.2f}" if cell.std is None else f"{cell.mean:.2f} ± {cell.std:.2f}"


def heads(results: Results, rounds: Sequence[int]) -> list[str]:
    """The fraction of the weights that is left after each round, in percent."""
    return [percent(results.spec.density(index)) for index in rounds]


def _hardware(results: Results) -> str:
    records = results.every_record
    devices = " and ".join(sorted({record.device for record in records}))
    most = max(record.together for record in records)
    hours = sum(record.seconds / record.together for record in records) / 3600
    beside = f", {most} networks side by side" if most > 1 else ""
    return f"on {devices}{beside}, {hours:.2g} h of training"


def _fraction(spec: Spec) -> str:
    """How the steps compare with those of the recipe at full length; nothing for recipes of the user's own."""
    if spec.recipe not in RECIPES:
        return ""
    full = RECIPES[spec.recipe](1.0, "fp32").spec
    share = spec.retrain.steps / full.retrain.steps
    return " (the full length)" if share == 1 else f" ({share:.3g} of the full length)"


def _scale(spec: Spec) -> str:
    if spec.plan == "profile":
        return "not retrained"
    counts = [f"{steps:,}" for steps in (spec.dense.steps, spec.retrain.steps) if steps]
    return f"{' + '.join(counts) or '0'} steps, {_precision(spec)}"


def _precision(spec: Spec) -> str:
    """The precision of training; of both phases where they differ."""
    return " and ".join(dict.fromkeys([spec.dense.precision, spec.retrain.precision]))


def _stem(spec: Spec) -> str:
    if spec.plan == "profile":
        return spec.recipe
    steps = "-".join(str(steps) for steps in (spec.dense.steps, spec.retrain.steps) if steps) or "0"
    return f"{spec.recipe}-{steps}-{_precision(spec).replace(' and ', '-')}"


def flat(spec: Spec) -> dict[str, Any]:
    """Every setting under its dotted name."""
    found: dict[str, Any] = {}
    for name, value in spec.to_json().items():
        within = isinstance(value, Mapping)
        found.update({f"{name}.{key}": each for key, each in value.items()} if within else {name: value})
    return found


def _is_unremarkable(name: str) -> bool:
    return _UNREMARKABLE.fullmatch(name) is not None


def _plain(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
