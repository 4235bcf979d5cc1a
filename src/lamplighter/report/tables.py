"""A recipe's results as the paper prints them: Markdown, LaTeX and CSV."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lamplighter.report.captions import heads, most_seeds, notes, number
from lamplighter.report.paper import PaperTable, PaperValue, paper_table
from lamplighter.report.results import Cell, Results

FIELDS = ("recipe", "setting", "metric", "method", "round", "surviving_percent")
STATISTICS = ("mean", "std", "n", "paper_mean", "paper_std")
_MANY = 10  # columns that fit on a page
_LATEX = str.maketrans({sign: f"\\{sign}" for sign in "&%$#_{}"} | {"±": "$\\pm$"})


@dataclass(frozen=True)
class Entry:
    """What stands in one place of a table.

    Args:
        cell: our values, if any.
        bold: whether it is the best of its column, or within one standard deviation of it.
        paper: the paper's value, if any.
        partial: whether fewer seeds got here than elsewhere.
    """

    cell: Cell | None
    bold: bool
    paper: PaperValue | None
    partial: bool = False

    @property
    def text(self) -> str:
        """Mean, standard deviation, and the number of seeds where it is not the same everywhere."""
        if self.cell is None:
            return "-"
        return f"{number(self.cell)} (n={self.cell.n})" if self.partial else number(self.cell)

    @property
    def paper_text(self) -> str:
        """The paper's mean and standard deviation."""
        return "" if self.paper is None else f"{self.paper.mean:.2f} ± {self.paper.std:.2f}"


@dataclass(frozen=True)
class Table:
    """Methods by surviving fractions.

    Args:
        title: which runs.
        heads: percent of the weights that survive, column by column.
        rows: method -> one entry for each column.
        notes: sentences below.
    """

    title: str
    heads: Sequence[str]
    rows: dict[str, list[Entry]]
    notes: Sequence[str]


def table(results: Results, title: str, columns: Sequence[int] | None = None) -> Table:
    """The table of a group of runs.

    Args:
        results: the runs.
        title: see `captions.headings`.
        columns: the rounds to show; by default those of the paper's table, where most of them are reached, else all,
            or every third and the last if they are many.
    """
    rounds = tuple(columns) if columns is not None else default_columns(results)
    best = {index: within_reach(results, index) for index in rounds}
    most = most_seeds(results)
    rows = {}
    for method in results.methods:
        rows[method] = [_entry(results, method, index, method in best[index], most) for index in rounds]
    compared = any(entry.paper for row in rows.values() for entry in row)
    return Table(title, heads(results, rounds), rows, notes(results, compared))


def default_columns(results: Results) -> tuple[int, ...]:
    """The rounds worth a column."""
    paper = _paper(results)
    if paper is not None:
        reached = tuple(index for index in paper.rounds if index in results.rounds)
        if 2 * len(reached) >= len(paper.rounds):
            return reached
    rounds = results.rounds or (0,)
    if len(rounds) <= _MANY:
        return rounds
    return tuple(index for index in rounds if index % 3 == 0 or index == rounds[-1])


def within_reach(results: Results, index: int) -> set[str]:
    """The methods to print in bold: |mean - best mean| <= standard deviation of the best.

    All tables of the paper follow this rule. The dense network, which all methods share, has no best method.
    """
    cells = {method: cell for method in results.methods if (cell := results.cell(method, index)) is not None}
    finite = {method: cell for method, cell in cells.items() if math.isfinite(cell.mean)}
    if index == 0 or not finite:
        return set()
    pick = min if results.lower_is_better else max
    best = pick(finite.values(), key=lambda cell: cell.mean)
    reach = (best.std or 0.0) * (1 + 1e-9)  # exactly one standard deviation away is within, however means were rounded
    return {method for method, cell in finite.items() if abs(cell.mean - best.mean) <= reach}


def markdown(shown: Table) -> str:
    """A heading, the table as GitHub renders it, the notes."""
    lines = [["weights left (%)", *shown.heads], ["---", *["---:"] * len(shown.heads)]]
    for method, entries in shown.rows.items():
        lines.append([method, *(f"**{entry.text}**" if entry.bold else entry.text for entry in entries)])
        if any(entry.paper for entry in entries):
            lines.append([f"*{method}, paper*", *(f"*{text}*" if (text := e.paper_text) else "" for e in entries)])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"### {shown.title}\n\n{body}\n\n{' '.join(shown.notes)}\n"


def latex(shown: Table) -> str:
    r"""A table float; needs `\usepackage{booktabs}`."""
    lines = [["weights left", *(f"{head}\\,\\%" for head in shown.heads)]]
    for method, entries in shown.rows.items():
        lines.append([method, *map(_latex_cell, entries)])
        if any(entry.paper for entry in entries):
            lines.append(["\\quad\\textit{paper}", *(_latex_small(entry.paper_text, "\\textit") for entry in entries)])
    head, *body = [f"{' & '.join(line)} \\\\" for line in lines]
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            "\\begin{table*}[ht]",
            "\\centering\\footnotesize\\setlength{\\tabcolsep}{3pt}",
            f"\\caption{{{_escaped(shown.title)}. {_escaped(' '.join(shown.notes))}}}",
            f"\\begin{{tabular}}{{l{'r' * len(shown.heads)}}}",
            "\\toprule",
            head,
            "\\midrule",
            *body,
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table*}",
            "",
        ]
    )


def _latex_cell(entry: Entry) -> str:
    return _latex_small(entry.text, "\\textbf" if entry.bold else "")


def _latex_small(text: str, command: str) -> str:
    """The mean at full size, what follows it small, as in the paper."""
    mean, _, rest = text.partition(" ")
    shown = f"{command}{{{mean}}}" if command and mean else mean
    return f"{shown}{{\\scriptsize {_escaped(rest)}}}" if rest else shown


def _escaped(text: str) -> str:
    return text.translate(_LATEX)


def rows(results: Results, title: str) -> Iterator[dict[str, Any]]:
    """Unrounded numbers and those of the paper, for the dense network and every method after every round.

    A statistic that does not exist is None.
    """
    places = [(method, index) for method in results.methods for index in results.rounds]
    for method, index in [("dense", 0), *places]:
        cell = results.cell(method, index)
        if cell is None:
            continue
        about = results.spec.recipe, title, results.metric, method, index, round(100 * results.spec.density(index), 8)
        numbers = cell.mean, cell.std, cell.n, *(paper_value(results, method, index) or (None, None))
        yield dict(zip(FIELDS + STATISTICS, (*about, *numbers), strict=True)) | {"values": cell.values}


def comma_separated(results: Results, title: str) -> str:
    """The same as CSV, without the values of single seeds."""
    out = io.StringIO()
    writer = csv.DictWriter(out, FIELDS + STATISTICS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(results, title))
    return out.getvalue()


def _entry(results: Results, method: str, index: int, bold: bool, most: int) -> Entry:
    cell = results.cell(method, index)
    partial = index > 0 and cell is not None and cell.n < most
    return Entry(cell, bold, paper_value(results, method, index), partial)


def _paper(results: Results) -> PaperTable | None:
    """The table that these runs reproduce: the paper's tables are all of iterative pruning."""
    return paper_table(results.spec.recipe) if results.spec.plan == "iterative" else None


def paper_value(results: Results, method: str, index: int) -> PaperValue | None:
    found = _paper(results)
    return None if found is None else found.value(method, results.spec.density(index))
