"""One group of runs on the page: its section, from the heading to the provenance."""

from collections.abc import Sequence
from html import escape

from lamplighter.report.bundle import Section
from lamplighter.report.captions import MEASURED
from lamplighter.report.page import markup
from lamplighter.report.page.markup import element
from lamplighter.report.page.origins import origins, seconds
from lamplighter.report.results import Counted

MANY = 40  # layers that fit into half the width of a page

# Of each chart of layers: what it shows, how to read it, and what it is for those who do not see it.
CHARTS = {
    "survival": (
        "What survives of each layer.",
        "Layers stand from the network's input to its output.",
        "Line chart: percent of each layer that is left, by method; the table below has its values",
    ),
    "counts": (
        "How many weights that is, on average over seeds.",
        "The scale is logarithmic; an emptied layer stands at 0.",
        "Line chart: weights left in each layer, by method; the table below has its values",
    ),
    "budgets": (
        "How each method shares out its budget.",
        "Every segment is a layer, from the input (dark) to the output (light), as wide as its share of what is left.",
        "Stacked bars: each layer's share of the weights that are left, by method; the table below has its values",
    ),
}


def anchor(place: int) -> str:
    """The id of a section."""
    return f"group-{place}"


def group(section: Section, place: int, runs: Sequence[Counted]) -> str:
    """The section of a group.

    Args:
        section: what is reported.
        place: which one on the page.
        runs: those behind it.
    """
    name, results = anchor(place), section.results
    parts = [markup.heading(results, section.title, name)]
    parts += [_rounds(name)] if results.rounds else []
    parts += [_measured(section)] if section.tested else []
    parts += [_layers(section)] if results.rounds else []
    hours = sum(map(seconds, runs)) / 3600
    parts += [element("h3", "Provenance"), markup.provenance(results, origins(runs), hours)]
    parts += [markup.folded("runs", f"All {len(runs)} runs")]
    body = element("div", *parts, class_="parts")
    return element("section", body, id=name, data_group=str(place), aria_labelledby=f"{name}-title", class_="group")


def _rounds(name: str) -> str:
    """The slider over rounds, and which methods are shown: for all charts of the group."""
    slider = f'<input type="range" id="{name}-round" min="0" step="1" value="0">'
    label = element("label", "Round", for_=f"{name}-round")
    chosen = element("div", label, slider, element("output", for_=f"{name}-round", aria_live="off"), class_="slider")
    return element("div", chosen, element("div", class_="legend"), class_="toolbar")


def _measured(section: Section) -> str:
    """Curves, the paper's table, every number."""
    results, measured = section.results, MEASURED[section.results.metric]
    parts = [element("h3", escape(f"{measured[0].upper()}{measured[1:]}"))]
    if results.rounds:
        label = f"Line chart: {measured} of each method over the weights that survive; the tables below have its values"
        title = "What sparsity costs."
        parts += [markup.figure("tradeoff", title, markup.tradeoff_caption(results), label)]
    parts.append(markup.results_table(section.table))
    if results.rounds:
        parts.append(markup.folded("all", "Every method after every round, with n"))
    return "".join(parts)


def _layers(section: Section) -> str:
    """What is left of each layer after the round that the slider stands on."""
    kernels = " Hollow markers: 1x1 convolutions." if section.results.spec.plan == "profile" else ""
    figures = {
        kind: markup.figure(kind, title, caption + (kernels if kind == "survival" else ""), label)
        for kind, (title, caption, label) in CHARTS.items()
    }
    many = any(len(record.sizes) > MANY for record in section.results.every_record)
    pair = element("div", figures["survival"], figures["counts"], class_="pair wide" if many else "pair")
    now = element("h3", "Layer by layer ", element("span", class_="now"))
    table = [element("div", data_table="round")] if section.tested else []
    return "".join([now, *table, pair, figures["budgets"], markup.folded("layers", "Every layer at this round")])
