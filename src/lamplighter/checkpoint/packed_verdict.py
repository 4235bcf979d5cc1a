"""What verifying found: counts of each tensor or layer, and where a checkpoint is not the original pruned."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Difference:
    """Where a checkpoint is not the original pruned.

    Args:
        tensor: the name of the tensor, or of the layer.
        why: what is wrong with it.
        index: the first entry concerned, if it is about entries.
    """

    tensor: str
    why: str
    index: tuple[int, ...] | None = None

    def __str__(self) -> str:
        place = "" if self.index is None else f" at [{', '.join(map(str, self.index))}]"
        return f"{self.tensor}{place}: {self.why}"


@dataclass
class Tally:
    """What was found in one tensor, or in one expert of a stack.

    Args:
        entries: how many it has.
        nonzero: how many are not zero.
        removed: how many are zero, and were not in the original.
        different: how many are neither zero nor the original's.
        first_removed: the flat index, within the tensor, of the first that was removed.
        first_different: that of the first that is different.
    """

    entries: int = 0
    nonzero: int = 0
    removed: int = 0
    different: int = 0
    first_removed: int | None = None
    first_different: int | None = None

    def add(self, more: "Tally") -> None:
        """What was found in another chunk; chunks come in any order."""
        self.entries += more.entries
        self.nonzero += more.nonzero
        self.removed += more.removed
        self.different += more.different
        self.first_removed = _earlier(self.first_removed, more.first_removed)
        self.first_different = _earlier(self.first_different, more.first_different)

    def keeps(self, planned: int) -> bool:
        """Whether so many may have been kept: what was zero in the original counts as kept or as removed."""
        return self.nonzero <= planned <= self.entries - self.removed


@dataclass(frozen=True)
class Verdict:
    """What verifying found.

    Args:
        tallies: the counts of each tensor that both checkpoints have; of expert stacks that were pruned, each expert's.
        differences: where the checkpoint is not the original pruned, in the original's order.
        planned: how many weights each layer was to keep, as far as the checkpoint says how it was pruned.
        total: how many all layers together were to keep, if it says.
        seconds: how long it took.
        unchecked: why it was not checked how many weights each layer keeps, if it was not.

    In a condition it is `ok`.
    """

    tallies: Mapping[str, Tally]
    differences: list[Difference]
    planned: Mapping[str, int] = field(default_factory=dict)
    total: int | None = None
    seconds: float = 0.0
    unchecked: str | None = None

    def __bool__(self) -> bool:
        """Whether the checkpoint is the original pruned, as planned."""
        return self.ok

    @property
    def ok(self) -> bool:
        """Whether the checkpoint is the original pruned, as planned."""
        return not self.differences

    @property
    def entries(self) -> int:
        """How many entries were compared."""
        return sum(tally.entries for tally in self.tallies.values())

    @property
    def nonzero(self) -> int:
        """How many of them are not zero."""
        return sum(tally.nonzero for tally in self.tallies.values())

    @property
    def removed(self) -> int:
        """How many are zero, and were not in the original."""
        return sum(tally.removed for tally in self.tallies.values())

    @property
    def zero_in_both(self) -> int:
        """How many are zero, and were in the original already."""
        return self.entries - self.nonzero - self.removed

    @property
    def layers_as_planned(self) -> int:
        """How many of the layers keep as many weights as planned."""
        return sum(self.tallies[name].keeps(count) for name, count in self.planned.items() if name in self.tallies)

    @property
    def different(self) -> int:
        """How many are neither zero nor the original's."""
        return sum(tally.different for tally in self.tallies.values())

    def as_data(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        totals = {name: getattr(self, name) for name in ("ok", "entries", "nonzero", "removed", "different", "seconds")}
        tensors = {name: {**asdict(each), "planned": self.planned.get(name)} for name, each in self.tallies.items()}
        about = {"budgets_not_checked": self.unchecked, "differences": [asdict(each) for each in self.differences]}
        return {**totals, **about, "tensors": tensors}

    def __str__(self) -> str:
        note = f"; budgets not checked: {self.unchecked}" if self.unchecked else ""
        return self.outcome + note

    @property
    def outcome(self) -> str:
        """What was found, in a line."""
        if not self.ok:
            many = len(self.differences)
            return f"different in {many:,} place{'s' * (many != 1)}, the first: {self.differences[0]}"
        many = len(self.planned)
        plan = f", as planned in {many:,} layer{'s' * (many != 1)}" if many else ""
        return f"{self.entries:,} entries: {self.removed:,} removed, every other one as in the original{plan}"


def tally_of(ours: Tensor, theirs: Tensor, start: int) -> Tally:
    """The counts of some words: of the checkpoint, of the original, and where they begin in the tensor."""
    found, expected = ours.numpy(), theirs.numpy()
    tally = Tally(len(found), int(np.count_nonzero(found)))
    changed = found != expected
    if not changed.any():
        return tally
    different = changed & (found != 0)
    tally.different = int(np.count_nonzero(different))
    tally.removed = int(np.count_nonzero(changed)) - tally.different
    if tally.different:
        tally.first_different = start + int(different.argmax())
    if tally.removed:
        tally.first_removed = start + int((changed & (found == 0)).argmax())
    return tally


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
