"""Where the numbers on the page come from: the runs of each group, their code, versions, hardware and data."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamplighter.experiments.spec import DENSE
from lamplighter.experiments.store import PROVENANCE, Run
from lamplighter.report.results import Counted, Results, setting

# As they are headed on the page, in its order.
FIELDS = {
    "commit": "Commit",
    "lamplighter": "Lamplighter",
    "torch": "PyTorch",
    "python": "Python",
    "device": "Hardware",
    "threads": "Threads",
    "data": "Data (SHA-256)",
}


@dataclass(frozen=True)
class Origin:
    """What some runs were computed with.

    Args:
        about: a text for each of `FIELDS`; empty where nothing is known.
        runs: how many.
    """

    about: Mapping[str, str]
    runs: int


def by_setting(runs: Sequence[Counted]) -> dict[str, list[Counted]]:
    """The runs that differ in nothing but method and seed, under what they have in common."""
    found: dict[str, list[Counted]] = {}
    for each in runs:
        found.setdefault(setting(each.run.spec), []).append(each)
    return found


def runs_of(results: Results, known: Mapping[str, Sequence[Counted]]) -> list[Counted]:
    """The runs behind a group: the dense networks it starts from, then its own."""
    own = [each for each in known.get(setting(results.spec), ()) if each.run.spec.method != DENSE]
    shared = [each for each in known.get(setting(results.spec.shared), ()) if each.run.spec.method == DENSE]
    return [*shared, *sorted(own, key=lambda each: (results.methods.index(each.run.spec.method), each.run.spec.seed))]


def origins(runs: Sequence[Counted]) -> list[Origin]:
    """The distinct ones, those of most runs first; a run that changed machines counts under each."""
    found: dict[tuple[str, ...], int] = {}
    for each in runs:
        for about in dict.fromkeys(_lines(each.run)):
            found[about] = found.get(about, 0) + 1
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return [Origin(dict(zip(FIELDS, about, strict=True)), count) for about, count in ordered]


def seconds(each: Counted) -> float:
    """A run's share of the time that networks side by side trained in."""
    return sum(record.seconds / record.together for record in each.records.values())


def listed(runs: Sequence[Counted], root: Path) -> list[list[Any]]:
    """For each run: method, seed, last round, seconds, folder."""
    return [
        [each.run.spec.method, each.run.spec.seed, max(each.records), round(seconds(each), 1), _folder(each.run, root)]
        for each in runs
    ]


def _folder(run: Run, root: Path) -> str:
    return run.folder.relative_to(root).as_posix()


def _lines(run: Run) -> list[tuple[str, ...]]:
    """What the run's processes said of themselves; what a killed one left of a line is passed over."""
    path = run.folder / PROVENANCE
    whole = path.read_text("utf-8").rpartition("\n")[0] if path.exists() else ""
    found = [_fields(line) for line in whole.splitlines()]
    return [each for each in found if each is not None] or [("",) * len(FIELDS)]


def _fields(line: str) -> tuple[str, ...] | None:
    try:
        about = json.loads(line)
    except ValueError:
        return None
    return tuple("" if about.get(name) is None else str(about[name]) for name in FIELDS)
