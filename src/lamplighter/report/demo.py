"""What the demonstration shows for its measurements: the table, the two figures, the record."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from lamplighter.experiments.demo import Point, Setting, layer_titles
from lamplighter.report import figures
from lamplighter.report.figures import Curve, percent

LAYER_ROUNDS = (6, 12, 18)  # 26.2, 6.87 and 1.80 % of the weights


def curve(points: Sequence[Point], method: str) -> Curve:
    """Accuracies of `method` at every density, trial by trial, beginning with the dense network all methods share."""
    mine = [point for point in points if point.method in {"dense", method}]
    rounds = sorted({point.round for point in mine})
    by_round = {number: [point for point in mine if point.round == number] for number in rounds}
    return Curve(
        [by_round[number][0].density for number in rounds],
        [[point.accuracy for point in by_round[number]] for number in rounds],
    )


def table(points: Sequence[Point], setting: Setting) -> Table:
    """Methods by densities, every third round and the last; the best of a column is bold."""
    columns = sorted({*range(0, setting.rounds + 1, 3), setting.rounds})
    found = {method: curve(points, method) for method in setting.methods}
    means = {method: [fmean(line.values[number]) for number in columns] for method, line in found.items()}
    best = [max(row[place] for row in means.values()) for place in range(len(columns))]
    densities = found[setting.methods[0]].densities
    shown = Table(title=f"Test accuracy (%), {_trials(setting)}", title_justify="left")
    shown.add_column("weights left (%)")
    for number in columns:
        shown.add_column(percent(densities[number]), justify="right")
    for method, row in means.items():
        cells = [
            f"[bold]{100 * mean:.1f}[/bold]" if mean == top else f"{100 * mean:.1f}"
            for mean, top in zip(row, best, strict=True)
        ]
        shown.add_row(method, *cells)
    return shown


def draw(points: Sequence[Point], setting: Setting, folder: Path) -> tuple[Path, Path]:
    """Write `curves.png` and `layers.png` into `folder`."""
    lines = {method: _as_percent(curve(points, method)) for method in setting.methods}
    bars = "; bars: worst to best" if setting.trials > 1 else ""
    what = f"Digits, pruned 20 % a round and trained on ({_trials(setting)}{bars})"
    paths = folder / "curves.png", folder / "layers.png"
    figures.save(figures.curves(lines, "test accuracy (%)", what), paths[0])
    numbers = [number for number in LAYER_ROUNDS if number <= setting.rounds] or [setting.rounds]
    survival = {_density(points, number): _layers(points, setting.methods, number) for number in numbers}
    figures.save(
        figures.layers(layer_titles(), survival, f"Where the surviving weights are ({_trials(setting)})"), paths[1]
    )
    return paths


def record(points: Sequence[Point], setting: Setting, seconds: float) -> dict[str, Any]:
    """The whole run as data."""
    return {"setting": asdict(setting), "seconds": round(seconds, 2), "points": [asdict(point) for point in points]}


def _trials(setting: Setting) -> str:
    return f"mean of {setting.trials} trials" if setting.trials > 1 else "one trial"


def _as_percent(line: Curve) -> Curve:
    return Curve(line.densities, [[100 * value for value in trials] for trials in line.values])


def _density(points: Sequence[Point], number: int) -> float:
    return next(point.density for point in points if point.round == number)


def _layers(points: Sequence[Point], methods: Sequence[str], number: int) -> dict[str, list[float]]:
    """Method -> density of each layer after round `number`, averaged over trials."""
    found = {}
    for method in methods:
        trials = [point.layers for point in points if point.method == method and point.round == number]
        found[method] = [fmean(layers[name] for layers in trials) for name in trials[0]]
    return found
