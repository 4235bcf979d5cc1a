"""The result tables of the paper (LAMP, ICLR 2021), looked up by recipe, method and density."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

RATE = 0.2  # of the surviving weights, pruned each round
TRIALS = 5


class PaperValue(NamedTuple):
    """A cell: percent correct, or perplexity."""

    mean: float
    std: float


@dataclass(frozen=True)
class PaperTable:
    """One of the eight tables.

    Args:
        caption: as printed, without what it says about bold.
        rounds: of the columns.
        values: method -> round -> cell.
    """

    caption: str
    rounds: tuple[int, ...]
    values: Mapping[str, Mapping[int, PaperValue]]

    def value(self, method: str, density: float) -> PaperValue | None:
        """What the paper reports for a method where this fraction of the weights is left, if it does."""
        index = round_of(density)
        return None if index is None else self.values.get(method, {}).get(index)


def round_of(density: float) -> int | None:
    """The round of the paper after which exactly this fraction of the weights is left, or None between two rounds.

    >>> round_of(0.8**20), round_of((1 - 0.36) ** 10), round_of(0.5), round_of(0.0115)
    (20, 20, None, None)
    """
    index = _nearest_round(density)
    return index if math.isclose(density, (1 - RATE) ** index, rel_tol=1e-9) else None


def _nearest_round(density: float) -> int:
    """For printed densities of two or three digits: the paper's 0.12 % is 3 % off 0.8^30, and rounds are 20 % apart."""
    return round(math.log(density) / math.log(1 - RATE))


def paper_table(recipe: str) -> PaperTable | None:
    """The table that a recipe reproduces; None where the paper has none, or only a figure."""
    return _tables().get(recipe)


@cache
def _tables() -> dict[str, PaperTable]:
    content = files("lamplighter.report").joinpath("paper_tables.json").read_text("utf-8")
    found = {}
    for recipe, table in json.loads(content).items():
        rounds = tuple(_nearest_round(percent / 100) for percent in table["surviving_percent"])
        values = {
            method: {index: PaperValue(*cell) for index, cell in zip(rounds, cells, strict=True)}
            for method, cells in table["mean_std"].items()
        }
        found[recipe] = PaperTable(table["caption"], rounds, values)
    return found
