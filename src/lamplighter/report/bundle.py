"""Everything that is made of a folder of runs: which files there are, and what is in them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamplighter.report import layerwise, peaks, precision, tables, tradeoff
from lamplighter.report.captions import headings, seeds, stems, training
from lamplighter.report.figures import rendered
from lamplighter.report.results import Results
from lamplighter.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("png", "pdf")


@dataclass(frozen=True)
class Section:
    """The report on one group of runs.

    Args:
        results: the runs.
        title: which they are.
        stem: what the names of their files begin with.
    """

    results: Results
    title: str
    stem: str

    @property
    def table(self) -> Table:
        """The table with the columns that are worth showing."""
        return tables.table(self.results, self.title)

    @property
    def tested(self) -> bool:
        """Whether there is anything to tabulate."""
        return self.results.metric != "none"


def sections(results: Sequence[Results]) -> list[Section]:
    """One for each group of runs."""
    return [Section(*each) for each in zip(results, headings(results), stems(results), strict=True)]


def contents(section: Section, others: Sequence[Results]) -> dict[str, bytes]:
    """File name -> content, of all tables and figures of a section.

    Args:
        section: what to report on.
        others: all results, among which its one-shot counterpart may be.
    """
    texts = _tables(section) | _precision(section, others) if section.tested else {}
    figures = {name: make() for name, make in _figures(section, others).items()}
    drawn = {f"{name}.{kind}": rendered(figure, kind) for name, figure in figures.items() for kind in KINDS}
    return {name: text.encode() for name, text in texts.items()} | drawn


def _tables(section: Section) -> dict[str, str]:
    shown, name = section.table, f"{section.stem}-table"
    return {
        f"{name}.md": tables.markdown(shown),
        f"{name}.tex": tables.latex(shown),
        f"{name}.csv": tables.comma_separated(section.results, section.title),
    }


def _precision(section: Section, others: Sequence[Results]) -> dict[str, str]:
    """How a lower precision compares with fp32, where both were run."""
    results = section.results
    exact = precision.twin(results, others)
    pairs = precision.compare(exact, results) if exact else []
    if not pairs:
        return {}
    text = precision.markdown(pairs, section.title, results.spec.retrain.precision, results.metric)
    return {f"{section.stem}-against-fp32.md": text}


def _figures(section: Section, others: Sequence[Results]) -> Mapping[str, "Callable[[], Figure]"]:
    """The figures that there are records for, and how to draw them."""
    results, title, stem = section.results, section.title, section.stem
    found: dict[str, Callable[[], Figure]] = {}
    if section.tested and results.rounds:
        note = f"{seeds(results)}; {training(results.spec)}"
        found[f"{stem}-tradeoff"] = lambda: tradeoff.tradeoff(results, title, note)
    oneshot = tradeoff.counterpart(results, others)
    if oneshot is not None and tradeoff.shared(results, oneshot):
        found[f"{stem}-iteration"] = lambda: tradeoff.iteration(
            results, oneshot, f"{title}; above each panel: what iteration gains"
        )
    if results.spec.plan == "profile":
        if layerwise.reached(results, peaks.ROUNDS):
            found[f"{stem}-peaks"] = lambda: peaks.profile(results, title)
    elif layerwise.reached(results, layerwise.SURVIVAL_ROUNDS + layerwise.COUNT_ROUNDS):
        found[f"{stem}-layers"] = lambda: layerwise.layerwise(results, title)
    return found
