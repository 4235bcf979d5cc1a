"""What of the page stands without JavaScript: sections, tables and sentences. Every text is escaped here."""

import math
from collections.abc import Iterable, Sequence
from html import escape

from lamplighter.report.captions import MEASURED, seeds, training
from lamplighter.report.figures import percent
from lamplighter.report.page.origins import FIELDS, Origin
from lamplighter.report.page.sentences import PLANS, differences, findings, ranked, shown
from lamplighter.report.results import Results
from lamplighter.report.tables import Entry, Table

_HASH = 40  # digits of a commit; a file's hash has more


def element(tag: str, *inner: str, **attributes: str) -> str:
    """An element around what is markup already; attributes are escaped, `_` in their names is `-`."""
    named = "".join(f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{named}>{''.join(inner)}</{tag}>"


def bullets(sentences: Iterable[str], **attributes: str) -> str:
    """A list of texts."""
    return element("ul", *(element("li", escape(each)) for each in sentences), **attributes)


def scrolling(table: str, label: str) -> str:
    """A table that scrolls by itself where the screen is narrow, by keyboard too."""
    return element("div", table, class_="scroll", tabindex="0", role="group", aria_label=label)


def summary(groups: Iterable[tuple[str, Results, str]]) -> str:
    """All groups at a glance: what was run, and who is best where fewest weights are left.

    Args:
        groups: of each its anchor, its results and its title.
    """
    heads = ("Experiment", "Trained", "Methods", "Seeds", "Rounds", "Fewest left (%)", "Best there")
    rows = [_summary_row(*each) for each in groups]
    head = element("tr", *(_column(name, number=name in heads[3:6], minor=name == "Methods") for name in heads))
    caption = element("caption", "What was run", class_="unseen")
    table = element("table", caption, element("thead", head), element("tbody", *rows), class_="sortable")
    return scrolling(table, "What was run")


def _column(name: str, *, number: bool = False, minor: bool = False) -> str:
    return element("th", escape(name), scope="col", class_="number" if number else "minor" if minor else "word")


def _summary_row(anchor: str, results: Results, title: str) -> str:
    spec = results.spec
    seeds_run = max(len(found) for found in (results.dense, *results.pruned.values()) if found)
    last = results.rounds[-1] if results.rounds else 0
    best = ranked(results, last)[:1]
    steps = str(spec.dense.steps + spec.retrain.steps)
    return element(
        "tr",
        element("th", element("a", escape(spec.recipe), href=f"#{anchor}"), scope="row"),
        element("td", escape(scale(spec.recipe, title)), data_sort=steps),
        element("td", escape(", ".join(results.methods)), class_="minor"),
        *(_count(value, str(value)) for value in (seeds_run, len(results.rounds))),
        _count(spec.density(last), percent(spec.density(last))),
        element("td", escape(f"{best[0][0]} {shown(best[0][1])}") if best else "&#8211;"),
    )


def _count(value: float, text: str) -> str:
    return element("td", text, class_="number", data_sort=str(value))


def scale(recipe: str, title: str) -> str:
    """What a section's title says beside the recipe."""
    return title.removeprefix(recipe).removeprefix(": ")


def heading(results: Results, title: str, anchor: str) -> str:
    """The recipe, its scale and settings in short, and what came out."""
    spec = results.spec
    facts = [spec.model, spec.dataset, PLANS[spec.plan]]
    facts += [f"ranked by {spec.score}"] if spec.score != "magnitude" else []
    found = element("p", escape(" ".join(findings(results))), class_="findings") if findings(results) else ""
    return "".join(
        [
            element("h2", element("a", escape(spec.recipe), href=f"#{anchor}"), id=f"{anchor}-title"),
            element("p", escape(scale(spec.recipe, title)), class_="scale"),
            bullets(facts, class_="facts"),
            found,
            _differences(results, anchor),
        ]
    )


def _differences(results: Results, anchor: str) -> str:
    found = differences(results)
    if not found:
        return ""
    title = element("h3", "What differs from the paper", id=f"{anchor}-differs")
    return element("div", title, bullets(found), class_="differs", role="note", aria_labelledby=f"{anchor}-differs")


def figure(kind: str, title: str, caption: str, label: str) -> str:
    """A place for a chart, which is drawn when it comes into view.

    Args:
        kind: which chart.
        title: what it shows.
        caption: how to read it.
        label: what it is, for those who do not see it.
    """
    said = element("figcaption", element("strong", escape(title)), " ", escape(caption))
    plot = element("div", class_="plot", role="img", aria_label=label)
    return element("figure", said, element("div", class_="options"), plot, data_chart=kind, class_=f"chart-{kind}")


def folded(kind: str, title: str) -> str:
    """A place for a table that is made when it is opened."""
    return element("details", element("summary", escape(title)), data_table=kind)


def tradeoff_caption(results: Results) -> str:
    """How to read the curves."""
    measured = MEASURED[results.metric]
    band = f"{seeds(results)}; bands reach one deviation to either side" if "±" in seeds(results) else seeds(results)
    shown = f"{measured[0].upper()}{measured[1:]} over the weights that survive, {band}."
    return f"{shown} The dotted line is the round chosen above."


def results_table(table: Table) -> str:
    """Methods by densities, as in the paper; its own values in small print below ours."""
    corner = element("th", "method", scope="col")
    heads = "".join(element("th", f"{escape(head)}&#8239;%", scope="col", class_="number") for head in table.heads)
    rows = [
        element("tr", _row_head(method, any(entry.paper for entry in entries)), *map(_entry, entries))
        for method, entries in table.rows.items()
    ]
    caption = element("caption", "Methods by weights left", class_="unseen")
    parts = [caption, element("thead", element("tr", corner, heads)), element("tbody", *rows)]
    made = element("table", *parts, class_="sortable results")
    return scrolling(made, f"Results of {table.title}") + element("p", escape(" ".join(table.notes)), class_="notes")


def _row_head(method: str, compared: bool) -> str:
    paper = element("span", "paper", class_="paper", aria_hidden="true") if compared else ""
    return element("th", escape(method), paper, scope="row")


def _entry(entry: Entry) -> str:
    if entry.cell is None:
        return element("td", "&#8211;", class_="number")
    mean, _, rest = entry.text.partition(" ")
    ours = element("strong" if entry.bold else "span", escape(mean), class_="mean")
    deviation = element("span", escape(rest), class_="deviation") if rest else ""
    label = element("span", "paper ", class_="unseen")
    paper = element("span", label, escape(entry.paper_text), class_="paper") if entry.paper else ""
    sort = {"data_sort": str(entry.cell.mean)} if math.isfinite(entry.cell.mean) else {}
    return element(
        "td", ours, " " if deviation else "", deviation, " " if paper else "", paper, class_="number", **sort
    )


def provenance(results: Results, found: Sequence[Origin], hours: float) -> str:
    """What the runs were computed with, and with which settings."""
    names = [*FIELDS.values(), "Runs"]
    rows = [[*each.about.values(), str(each.runs)] for each in found]
    head = element("tr", *(element("th", escape(name), scope="col") for name in names))
    body = [element("tr", *map(_origin, row)) for row in rows]
    caption = element("caption", "What the runs were computed with", class_="unseen")
    table = element("table", caption, element("thead", head), element("tbody", *body), class_="origins")
    said = f"Training: {training(results.spec)}."
    said += f" Time in optimizer steps: {duration(hours)}." if hours else ""
    return scrolling(table, "Provenance") + element("p", escape(said), class_="notes")


def duration(hours: float) -> str:
    """Hours, minutes or seconds.

    >>> duration(2.25), duration(0.16), duration(0.001)
    ('2.2 h', '9.6 min', '3.6 s')
    """
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.1f} min" if hours >= 1 / 60 else f"{3600 * hours:.1f} s"


def _origin(text: str) -> str:
    """A cell; hashes are shown short, and whole where they are pointed at, reached by keyboard, printed or copied."""
    if len(text) < _HASH or " " in text:
        return element("td", escape(text) or "&#8211;")
    changed = " and changes" if text.endswith("+") else ""
    return element("td", element("code", escape(text.removesuffix("+")), class_="hash", tabindex="0"), changed)
