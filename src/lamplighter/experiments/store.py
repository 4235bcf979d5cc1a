"""The folder of a run: its spec, what it ran on, a record and the network's state for every finished round.

A round is finished when its record is: the state is written first, then the line. A process that dies in between, or in
the middle of the line, leaves a round that is made again.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from lamplighter.errors import LamplighterError
from lamplighter.experiments.records import Record
from lamplighter.experiments.snapshots import load_state, save_state
from lamplighter.experiments.spec import Spec
from lamplighter.masks import Masks

SPEC, RECORDS, PROVENANCE, LOCK = "spec.json", "rounds.jsonl", "provenance.jsonl", ".lock"


@dataclass(frozen=True)
class Run:
    """A run as it stands on disk."""

    spec: Spec
    folder: Path

    @property
    def records(self) -> list[Record]:
        """The finished rounds, in order; what a killed process left of a line is passed over."""
        path = self.folder / RECORDS
        if not path.exists():
            return []
        whole = path.read_text("utf-8").rpartition("\n")[0]
        latest = {record.round: record for record in map(Record.from_line, whole.splitlines())}
        return [latest[index] for index in sorted(latest)]

    def has(self, index: int) -> bool:
        """Whether a round is finished."""
        return any(record.round == index for record in self.records)

    def state_path(self, index: int) -> Path:
        """Where the network's state after a round is."""
        return self.folder / f"round-{index:02d}.safetensors"

    def load(self, index: int, model: nn.Module) -> Masks | None:
        """Give a model the state it had after a round; its masks."""
        return load_state(self.state_path(index), model)

    def keep(self, index: int, model: nn.Module, masks: Masks | None) -> None:
        """Write the network's state after a round."""
        save_state(self.state_path(index), model, masks)

    def finish(self, record: Record, model: nn.Module, masks: Masks | None) -> None:
        """Keep a finished round: first the network, then the record that says it is there."""
        self.keep(record.round, model, masks)
        append_line(self.folder / RECORDS, record.to_line())


def open_run(root: Path, spec: Spec) -> Run:
    """The run of a spec below `root`, begun if it is not there."""
    folder = root / spec.recipe / spec.id
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SPEC
    if not path.exists():
        part = folder / f".{SPEC}.{os.getpid()}.part"
        part.write_text(json.dumps(spec.to_json(), indent=1) + "\n", "utf-8")
        part.replace(path)
    return Run(spec, folder)


def find_runs(root: Path) -> list[Run]:
    """Every run below a folder, by recipe, method and seed."""
    found = [Run(_read_spec(path), path.parent) for path in root.rglob(SPEC)]
    return sorted(found, key=lambda run: (run.spec.recipe, run.spec.method, run.spec.seed, run.folder.name))


def _read_spec(path: Path) -> Spec:
    try:
        return Spec.from_json(json.loads(path.read_text("utf-8")))
    except ValueError as error:  # what is not JSON, and our own errors
        raise LamplighterError(f"{path} cannot be read: {error}", "delete the run's folder, or update") from error


def append_line(path: Path, line: str) -> None:
    """Add a line that is on disk when this returns, behind the last whole line."""
    with path.open("ab+") as file:
        file.seek(0)
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def note_provenance(run: Run, about: dict[str, Any]) -> None:
    """Add what this process runs on, unless it is what the last one ran on."""
    path, line = run.folder / PROVENANCE, json.dumps(about, sort_keys=True) + "\n"
    if not path.exists() or not path.read_text("utf-8").endswith(line):
        append_line(path, line)


@contextmanager
def held(run: Run) -> Iterator[None]:
    """Keep other processes from working on the same run meanwhile; the system lets go when this process ends."""
    import fcntl  # noqa: PLC0415  (Windows has none; there, nothing but this fails)

    with (run.folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LamplighterError(f"another process is working on {run.folder}", "wait for it, or end it") from error
        yield
