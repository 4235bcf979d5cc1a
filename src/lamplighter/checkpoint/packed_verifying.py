"""Verifying a pruned or packed checkpoint: every weight that is kept is the original's, every other one is zero."""

import os
import threading
import time
from collections.abc import Mapping

import numpy as np

from lamplighter.checkpoint.dtypes import WIDTHS
from lamplighter.checkpoint.packed_conversion import Watch, ignore
from lamplighter.checkpoint.packed_format import Described
from lamplighter.checkpoint.packed_plan import Part, Plan, read_plan
from lamplighter.checkpoint.packed_reading import Packed, Piece
from lamplighter.checkpoint.packed_verdict import Difference, Tally, Verdict, tally_of
from lamplighter.checkpoint.threads import Workers, thread_count

Tensors = Mapping[str, Described]


def verify(
    pruned: str | os.PathLike[str],
    original: str | os.PathLike[str],
    *,
    threads: int | None = None,
    watch: Watch = ignore,
) -> Verdict:
    """Compare a pruned checkpoint, packed or not, with the original, bit for bit.

    Every entry must be the original's or +0.0. Where the checkpoint's metadata say how it was pruned, only the layers
    named there may have lost entries, and each must keep as many as planned; what was zero in the original already
    counts as kept or as removed, whichever fits. Where that cannot be decided again, `Verdict.unchecked` says why. Of
    the metadata nothing is imported or called: they may be anybody's.

    `if verify(...)` asks whether all is well: a `Verdict` is true if it is `ok`.

    Args:
        pruned: a file or folder, packed or not.
        original: what it was made from; it may be packed, too.
        threads: how many to use; about as many as there are processors if None.
        watch: is told how many bytes of the original are compared, by any thread.

    >>> import tempfile, torch
    >>> from lamplighter import pack
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     whole, sparse = (f"{folder}/{name}.safetensors" for name in ("whole", "sparse"))
    ...     done = pack({"w": torch.ones(100, 100)}, whole), pack({"w": torch.eye(100)}, sparse)
    ...     verdict = verify(sparse, whole)
    >>> print(verdict.outcome)
    10,000 entries: 9,900 removed, every other one as in the original
    >>> verdict.unchecked
    'the checkpoint does not say how it was pruned'
    """
    began, workers = time.perf_counter(), thread_count(threads)
    ours, theirs = Packed(pruned), Packed(original)
    plan = read_plan(ours, theirs, workers)
    odd = _mismatched(ours.tensors, theirs.tensors)
    tallies = {part.name: Tally() for name, parts in plan.parts.items() if name not in odd for part in parts}
    lock = threading.Lock()

    def work(pair: tuple[Piece, Piece]) -> None:
        piece = pair[0]
        found, expected = ours.read(piece), theirs.read(pair[1])
        for part in plan.parts[piece.name]:
            start, stop = max(part.start, piece.start), min(part.stop, piece.stop)
            if start < stop:
                within = slice(start - piece.start, stop - piece.start)
                tally = tally_of(found[within], expected[within], start)
                with lock:
                    tallies[part.name].add(tally)
        watch(found.nbytes)

    names = [name for name in theirs.tensors if name not in odd]
    Workers(workers, work).run(pair for n in names for pair in zip(ours.pieces(n), theirs.pieces(n), strict=True))
    found = [_wrong(name, part, theirs.tensors[name], tallies, plan) for name in names for part in plan.parts[name]]
    differences = [*odd.values(), *(each for each in found if each is not None), *_total_wrong(tallies, plan)]
    return Verdict(tallies, differences, plan.kept, plan.total, time.perf_counter() - began, plan.unchecked)


def _mismatched(ours: Tensors, theirs: Tensors) -> dict[str, Difference]:
    """Tensors that cannot be compared."""
    found = {name: Difference(name, "it is missing") for name in theirs if name not in ours}
    for name, (dtype, shape) in ours.items():
        if name not in theirs:
            found[name] = Difference(name, "the original does not have it")
        elif theirs[name] != (dtype, shape):
            was_dtype, was = theirs[name]
            found[name] = Difference(name, f"it is {dtype} of shape {list(shape)}, was {was_dtype} of {list(was)}")
    return found


def _wrong(name: str, part: Part, about: Described, tallies: Mapping[str, Tally], plan: Plan) -> Difference | None:
    """What is wrong with a tensor or a layer in it, if anything is."""
    tally, dtype = tallies[part.name], about[0]

    def at(place: int | None) -> tuple[int, ...] | None:
        exact = place is not None and not WIDTHS[dtype] % 8  # else a word is several entries
        return tuple(int(index) for index in np.unravel_index(place or 0, about[1])) if exact else None

    if tally.different:
        return Difference(
            name, f"{_entries(tally.different)} neither zero nor the original's", at(tally.first_different)
        )
    if tally.removed and not part.may_lose:
        why = f"{_entries(tally.removed)} zero, and not in the original, but this was not to be pruned"
        return Difference(name, why, at(tally.first_removed))
    planned = plan.kept.get(part.name)
    if planned is not None and not tally.keeps(planned):
        return Difference(part.name, f"{tally.nonzero:,} weights are kept, planned were {planned:,}")
    return None


def _total_wrong(tallies: Mapping[str, Tally], plan: Plan) -> list[Difference]:
    """Whether all layers together keep another number than the metadata say, as a list of one or none."""
    together = Tally()
    for name in plan.layers:
        together.add(tallies.get(name, Tally()))
    if plan.total is None or together.keeps(plan.total):
        return []
    return [Difference("all layers", f"{together.nonzero:,} weights are kept together, planned were {plan.total:,}")]


def _entries(count: int) -> str:
    return "1 entry is" if count == 1 else f"{count:,} entries are"
