"""A network that was loaded or compiled: called with arrays. Needs numpy, not torch."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lamplighter.errors import LamplighterError
from lamplighter.runtime.build import ISAS, kernels
from lamplighter.runtime.checking import check
from lamplighter.runtime.container import Tuned, read, write
from lamplighter.runtime.network import Conv, Network, multiply_adds
from lamplighter.runtime.operation import Floats
from lamplighter.runtime.plan import Plan, Settings


class Compiled:
    """A network ready to run on arrays of the shape it was compiled for.

    Threads that call it wait for each other, since its memory is its own: load it once for each of them instead.

    Args:
        network: what to run.
        settings: how.
        tuned: how it was found to run fastest, if that is known; used on the same instruction set and threads.
    """

    def __init__(self, network: Network, settings: Settings, tuned: Tuned | None = None) -> None:
        check(network)
        built = kernels()
        isa = next(name for name, number in ISAS.items() if number == built.isa(settings.isa))
        known = tuned is not None and (tuned.isa, tuned.threads) == (isa, settings.threads)
        self.network, self.isa = network, isa
        self.plan = Plan(network, built, settings, tuned.choices if known and tuned is not None else None)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape it takes, images first."""
        return self.network.input_shape

    def __call__(self, images: NDArray[np.float32]) -> Floats:
        """The network's outputs."""
        if not isinstance(images, np.ndarray) or images.dtype != np.float32:
            found = getattr(images, "dtype", type(images).__name__)
            raise LamplighterError(
                f"the input is {found}, expected an array of float32", "images.astype(numpy.float32)"
            )
        return self.plan.run(images)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .lamp file, which `lamplighter.runtime.load` reads."""
        write(Path(path), self.network, Tuned(self.isa, self.plan.settings.threads, self.plan.choices))

    @property
    def density(self) -> float:
        """The fraction left of the multiply-adds that the dense network takes."""
        counted = [multiply_adds(self.network, node) for node in self.network.nodes if isinstance(node, Conv)]
        return sum(left for left, _ in counted) / max(sum(every for _, every in counted), 1)

    def __repr__(self) -> str:
        settings = self.plan.settings
        return (
            f"Compiled(input {self.input_shape}, {100 * self.density:.3g} % of multiply-adds, {self.isa}, "
            f"{settings.threads} {'thread' if settings.threads == 1 else 'threads'})"
        )


def load(
    path: str | os.PathLike[str], *, threads: int = 1, isa: str | None = None, tune: float | None = None
) -> Compiled:
    """The network that `save` wrote, ready to run, without torch.

    Args:
        path: a .lamp file.
        threads: how many work together.
        isa: "avx512", "avx2" or "plain"; the best this processor has if None.
        tune: seconds to measure each way of each layer for, on this machine; what the file says is used if None.
    """
    network, tuned = read(Path(path))
    return Compiled(network, Settings(threads, isa, tune or 0.0), None if tune else tuned)
