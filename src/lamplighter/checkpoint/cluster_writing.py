"""The files of a pruned checkpoint, laid out here and filled by the nodes of a cluster."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lamplighter.checkpoint.checkpoint import Shard
from lamplighter.checkpoint.cluster_reading import Spread
from lamplighter.checkpoint.cluster_tasks import Fill, Share
from lamplighter.checkpoint.discovery import Region
from lamplighter.checkpoint.output import Output
from lamplighter.checkpoint.passing import Decision, Stretch
from lamplighter.checkpoint.progress import Meter, Tell
from lamplighter.checkpoint.shares import in_shares, split_tensor
from lamplighter.checkpoint.writing import ShardWriter, unwritable


@dataclass(frozen=True)
class _LaidOut:
    """A file of its full length, and the bytes that it still misses."""

    shard: Shard
    path: Path
    size: int
    places: Mapping[str, int]


def fill_shards(output: Output, decision: Decision, source: Spread, root: Path, tell: Tell) -> None:
    """Write the file of each shard below `root`, or the one file to `root` itself.

    Here files get their headers and their length, and are closed; the tasks write to their places in them. When all
    have said that what they wrote is on the disk, it is complete: a task that is lost says nothing, and is done again.
    """
    files = [_lay_out(output, shard, root) for shard in source.checkpoint.shards]
    filling = _Filling(_parts(decision, source), source)
    missing = {file.path: file.size - min(file.places.values(), default=file.size) for file in files}
    meter = Meter("writing", tell)
    meter.expect(source.checkpoint.nbytes)

    def arrived(task: Fill, written: int) -> None:
        missing[task.path] -= written
        meter.step(written)

    source.carry_out((task for file in files for task in filling.tasks(file)), arrived)
    assert not any(missing.values()), missing
    for file in files:
        _settle(file)


def _lay_out(output: Output, shard: Shard, root: Path) -> _LaidOut:
    path = output.path_of(shard, root)
    output.make(shard, path)
    writer = ShardWriter(path, output.described(shard), output.metadata(shard))
    writer.leave_to_others()
    return _LaidOut(shard, path, writer.nbytes, writer.places)


def _settle(file: _LaidOut) -> None:
    """Have this system write to the disk what it still holds, which on storage of its own is what tasks wrote here."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
            assert os.fstat(descriptor).st_size == file.size, file.path
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unwritable(file.path, error) from error


def _parts(decision: Decision, source: Spread) -> Decision:
    """What the parts of layers keep. A pattern needs whole rows: then every layer is its only part."""
    if decision.pattern is not None:
        return decision
    regions = {part: region for parts in source.parts.values() for part, region in parts.items()}
    return Decision(regions, source.split_cuts(decision.cuts), {})


class _Filling:
    """What makes the tasks that fill files.

    Args:
        decision: what the parts keep.
        source: what has read them.
    """

    def __init__(self, decision: Decision, source: Spread) -> None:
        self.decision = decision
        self.source = source
        self._parts: dict[str, dict[str, Region]] = {}
        for part, region in decision.regions.items():
            for tensor in region.tensors:
                self._parts.setdefault(tensor, {})[part] = region

    def tasks(self, file: _LaidOut) -> Iterator[Fill]:
        """The tasks that fill a file."""
        source = self.source
        for together in in_shares(self._stretches(file.shard), lambda each: each[0].nbytes, source.share):
            stretches = tuple(stretch for stretch, _ in together)
            decision = self._of([part for _, part in together if part is not None])
            share = Share(source.origin, decision.regions, source.cluster.threads, source.chunk)
            places = {stretch.tensor: file.places[stretch.tensor] for stretch in stretches}
            yield Fill(share, decision, stretches, file.path, file.size, places)

    def _stretches(self, shard: Shard) -> Iterator[tuple[Stretch, str | None]]:
        entries = self.source.checkpoint.entries
        for tensor in shard.tensors:
            yield from split_tensor(tensor, entries[tensor].nbytes, self._parts.get(tensor, {}), self.source.share)

    def _of(self, parts: Iterable[str]) -> Decision:
        """The decision for some parts."""
        whole = self.decision
        regions = {part: whole.regions[part] for part in parts}
        cuts = {part: whole.cuts[part] for part in regions if part in whole.cuts}
        budgets = {part: whole.budgets[part] for part in regions if part in whole.budgets}
        return Decision(regions, cuts, budgets, whole.pattern)
