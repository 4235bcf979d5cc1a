"""The readings of the weights, one file per kind of device. Each works on a flat run of entries and knows no layers.

Every kernel module offers the same five functions:

    count(run)                     the first reading: the run's spectrum
    window(run, low, high, energy) the second: the exact spectrum of the codes in [low, high), and the energy above
    energy(run, code)              the exact energy of the entries from a code up, as a whole number of units squared
    select(run, cut, drop, ...)    the last: what is kept, as packed bits; the rest may be set to zero
    erase(run)                     sets what is not alive to zero

Those for CUDA also have `count_many`, `window_many` and `select_many`, which read many runs in one go.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from torch import Tensor

from lamplighter.formats import FORMATS, Format


@dataclass(frozen=True, eq=False)
class Run:
    """Entries that lie one behind the other in memory, and which of them are still alive.

    Args:
        entries: a one-dimensional contiguous tensor.
        alive: its bit-packed mask (see `bits`), or None when all are alive.
    """

    entries: Tensor
    alive: Tensor | None = None

    @property
    def form(self) -> Format:
        """The format of the entries."""
        return FORMATS[self.entries.dtype]


def kernels_for(run: Run) -> ModuleType:
    """The kernels for the device that a run lies on."""
    from lamplighter.kernels import anywhere, cpu  # noqa: PLC0415  (they import Run from here)

    if run.entries.device.type == "cpu":
        return cpu
    if run.entries.device.type == "cuda":
        from lamplighter.kernels import cuda  # noqa: PLC0415

        return cuda if cuda.suits(run) else anywhere
    return anywhere


def batches(runs: Mapping[str, Run]) -> list[dict[str, Run]]:
    """Groups of runs that CUDA kernels read in one go; what is in none is read run by run."""
    if not any(run.entries.device.type == "cuda" for run in runs.values()):
        return []
    from lamplighter.kernels import cuda  # noqa: PLC0415

    return cuda.by_kind({name: run for name, run in runs.items() if cuda.suits(run)})
