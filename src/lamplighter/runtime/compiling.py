"""`compile`: from a PyTorch model to a network of sparse kernels, measured beside the dense one."""

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.runtime import build
from lamplighter.runtime.compiled import Compiled
from lamplighter.runtime.plan import Settings
from lamplighter.runtime.tracer import UnsupportedError
from lamplighter.runtime.tracing import exported, trace

REPEATS = 5


@dataclass(frozen=True)
class Measured:
    """What a run took on this machine, in seconds; medians.

    Args:
        dense: by torch, eagerly, zeros and all.
        sparse: by the compiled network.
        threads: how many worked together.
    """

    dense: float
    sparse: float
    threads: int

    @property
    def speedup(self) -> float:
        """How many times faster the compiled network is."""
        return self.dense / self.sparse

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        times = f"{1e3 * self.dense:.3g} ms dense (torch, eager), {1e3 * self.sparse:.3g} ms compiled"
        return f"{times}: {self.speedup:.2g} times as fast, {threads}"


class Fast:
    """A model that was compiled: called with tensors as the model is.

    Args:
        compiled: the network of sparse kernels, or None where torch has to run it.
        dense: the exported model.
        why: why torch has to run it.
        measured: what both took.
    """

    def __init__(
        self, compiled: Compiled | None, dense: nn.Module, why: str | None = None, measured: Measured | None = None
    ) -> None:
        self.compiled, self.why, self.measured = compiled, why, measured
        self._dense = dense

    @property
    def backend(self) -> str:
        """What runs it: "sparse" or "torch"."""
        return "torch" if self.compiled is None else "sparse"

    def __call__(self, images: Tensor) -> Tensor:
        """The model's outputs."""
        if self.compiled is None:
            with torch.no_grad():
                result: Tensor = self._dense(images)
            return result
        return torch.from_numpy(self.compiled(images.detach().cpu().numpy()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .lamp file, which `lamplighter.runtime.load` reads without torch."""
        if self.compiled is None:
            raise LamplighterError(f"there is nothing to save: torch runs this model, since {self.why}")
        self.compiled.save(path)

    def __repr__(self) -> str:
        return f"Fast({self.compiled!r})" if self.compiled is not None else f"Fast(torch, since {self.why})"


def compile(  # noqa: A001 - its public name
    model: nn.Module | ExportedProgram,
    example_inputs: Tensor | tuple[Tensor, ...],
    *,
    threads: int = 1,
    isa: str | None = None,
    tune: float = 0.01,
    measure: bool = True,
) -> Fast:
    """A pruned model that makes use of its zeros: the same outputs, sooner, on ordinary processors.

    The model is exported for inputs of the example's shape, in evaluation mode. Batch norms are folded, biases, ReLUs
    and additions taken into the layers before them, and for each layer the fastest of several kernels is measured here.
    What the kernels cannot run, torch runs, with a warning.

    Args:
        model: a module, or what `torch.export.export` made of one.
        example_inputs: an input of the shape that is wanted; another shape is compiled anew.
        threads: how many work together.
        isa: "avx512", "avx2" or "plain"; the best this processor has if None.
        tune: seconds to measure each way of each layer for; 0 to guess.
        measure: also measure the dense model, and warn if pruning does not pay.

    >>> fast = compile(nn.Linear(8, 4), torch.zeros(1, 8), measure=False)  # doctest: +SKIP
    >>> fast(torch.zeros(1, 8)).shape  # doctest: +SKIP
    torch.Size([1, 4])
    """
    example = example_inputs if isinstance(example_inputs, Tensor) else _only(example_inputs)
    program = exported(model, example)
    dense = program.module()
    try:
        network = trace(program)
    except UnsupportedError as error:
        return _left_to_torch(dense, f"the sparse runtime cannot run {error.what}")
    if (missing := build.available()) is not None:
        return _left_to_torch(dense, missing)
    if tuple(example.shape) != network.input_shape:
        raise LamplighterError(f"the program takes {network.input_shape}, the example has {tuple(example.shape)}")
    fast = Fast(Compiled(network, Settings(threads, isa, tune)), dense)
    if measure:
        fast.measured = _measure(fast, dense, example, threads)
        if fast.measured.speedup < 1:
            warnings.warn(f"pruning does not pay here: {fast.measured}", LamplighterWarning, stacklevel=2)
    return fast


def _only(inputs: tuple[Tensor, ...]) -> Tensor:
    if len(inputs) != 1 or not isinstance(inputs[0], Tensor):
        raise LamplighterError("the sparse runtime takes models with one tensor as input", "compile(model, images)")
    return inputs[0]


def _left_to_torch(dense: nn.Module, why: str) -> Fast:
    warnings.warn(f"torch runs this model, zeros and all: {why}", LamplighterWarning, stacklevel=3)
    return Fast(None, dense, why)


def _measure(fast: Fast, dense: nn.Module, example: Tensor, threads: int) -> Measured:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    works: dict[str, Callable[[], object]] = {"dense": lambda: dense(example), "sparse": lambda: fast(example)}
    seconds: dict[str, list[float]] = {name: [] for name in works}
    try:
        with torch.no_grad():
            for repeat in range(REPEATS + 1):
                for name, work in works.items():
                    began = time.perf_counter()
                    work()
                    if repeat > 0:  # the first round warms up
                        seconds[name].append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)
    return Measured(median(seconds["dense"]), median(seconds["sparse"]), threads)
