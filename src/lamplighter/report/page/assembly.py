"""The page of a report: groups of runs, what was run at a glance, and the numbers behind the charts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lamplighter.report.bundle import Section
from lamplighter.report.page import markup
from lamplighter.report.page.document import Content, document, links
from lamplighter.report.page.groups import anchor, group
from lamplighter.report.page.looks import looks
from lamplighter.report.page.markup import element
from lamplighter.report.page.numbers import layers, numbers
from lamplighter.report.page.origins import by_setting, listed, runs_of
from lamplighter.report.results import Counted

SCRIPTS = ("elements", "theme", "plotting", "views", "curves", "layers", "tables", "legend", "groups", "report")


def page(sections: Sequence[Section], runs: Sequence[Counted], root: Path) -> bytes:
    """The file of a report.

    Args:
        sections: what is reported on, in order.
        runs: all that count.
        root: the folder they were found in.
    """
    known = by_setting(runs)
    behind = [runs_of(section.results, known) for section in sections]
    groups = [group(section, place, found) for place, (section, found) in enumerate(zip(sections, behind, strict=True))]
    contents = links([("summary", "At a glance", ""), *_entries(sections)])
    main = "".join([_summary(sections), *groups])
    data = _data(sections, behind, root)
    return document(
        Content("Lamplighter report", _about(sections, behind), ("Experiments", contents), main, data, SCRIPTS)
    )


def _entries(sections: Sequence[Section]) -> list[tuple[str, str, str]]:
    recipes = [section.results.spec.recipe for section in sections]
    scales = [markup.scale(recipe, section.title) for recipe, section in zip(recipes, sections, strict=True)]
    return [(anchor(place), *each) for place, each in enumerate(zip(recipes, scales, strict=True))]


def _summary(sections: Sequence[Section]) -> str:
    listing = [(anchor(place), section.results, section.title) for place, section in enumerate(sections)]
    heading = element("h2", "At a glance", id="summary-title")
    named = {"id": "summary", "class_": "group", "aria_labelledby": "summary-title"}
    return element("section", heading, markup.summary(listing), **named)


def _data(sections: Sequence[Section], behind: Sequence[Sequence[Counted]], root: Path) -> dict[str, Any]:
    """The numbers: what all groups have in common, and for each one what is read when it comes into view."""
    methods = list(dict.fromkeys(method for section in sections for method in section.results.methods))
    found: dict[str, Any] = {"looks": looks(methods)}
    for place, (section, runs) in enumerate(zip(sections, behind, strict=True)):
        found[f"numbers-{place}"] = numbers(section, sections)
        found[f"runs-{place}"] = listed(runs, root)
        if section.results.rounds:
            found[f"layers-{place}"] = layers(section.results)
    return found


def _about(sections: Sequence[Section], behind: Sequence[Sequence[Counted]]) -> str:
    """How much there is on the page."""
    runs = {each.run.folder: len(each.records) for found in behind for each in found}
    counts = [(len(sections), "experiment"), (len(runs), "run"), (sum(runs.values()), "finished round")]
    return ", ".join(f"{count:,} {name}{'' if count == 1 else 's'}" for count, name in counts)
