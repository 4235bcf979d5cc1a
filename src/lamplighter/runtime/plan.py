"""A network ready to run on this machine: memory, operations, and the threads that carry them out."""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from lamplighter.errors import LamplighterError
from lamplighter.runtime.buffers import Place, allocate
from lamplighter.runtime.build import Kernels
from lamplighter.runtime.layout import Key, Planes, arrange, source, strided
from lamplighter.runtime.network import Conv, Network, Pool
from lamplighter.runtime.operation import Floats, Operation
from lamplighter.runtime.steps import (
    Choice,
    Convolution,
    Step,
    conv_step,
    convolution,
    load_step,
    mean_step,
    pool_step,
    split_step,
    store_step,
)
from lamplighter.runtime.tuning import fastest, guess, longest, options

SIDE_BY_SIDE = 16  # images, where there are images
MOST = 2**32  # floats in all values together
ROWS_SIDE_BY_SIDE = 64  # where every value is a vector: then weights are what is read most


@dataclass(frozen=True)
class Settings:
    """How a network is to run.

    Args:
        threads: how many work together.
        isa: "avx512", "avx2" or "plain"; the best there is if None.
        seconds: how long each way of a layer is measured for; 0 to guess instead.
    """

    threads: int = 1
    isa: str | None = None
    seconds: float = 0.01


class Plan:
    """A network with its memory, ready to run.

    Args:
        network: what to run.
        kernels: the compiled kernels.
        settings: how.
        choices: how each convolution is carried out, by its place among the nodes; those that are not there are
            measured, or guessed.
    """

    def __init__(
        self, network: Network, kernels: Kernels, settings: Settings, choices: Mapping[int, Choice] | None = None
    ) -> None:
        if settings.threads < 1:
            raise LamplighterError(f"threads is {settings.threads}, expected at least 1")
        self.network, self.settings = network, settings
        self.isa = kernels.isa(settings.isa)
        self.batch = chunk_of(network)
        self._team = kernels.team(settings.threads)
        self._one_at_a_time = threading.Lock()  # there is one memory for all calls
        self._places = allocate(network, _checked(arrange(network, self.batch)))
        self.choices: dict[int, Choice] = dict(choices or {})
        self.seconds: dict[int, float] = {}
        self._steps = self._build()
        self._operations = _array([step.operation for step in self._steps])

    def run(self, images: NDArray[np.float32]) -> Floats:
        """The network's outputs for images of the shape it was compiled for."""
        if images.shape != self.network.input_shape:
            raise LamplighterError(
                f"the input has shape {tuple(images.shape)}, this network was compiled for {self.network.input_shape}",
                "compile it for this shape as well",
            )
        given = np.ascontiguousarray(images, np.float32)
        result = np.empty(self.network.output_shape, np.float32)
        ends = given.ctypes.data, result.ctypes.data
        with self._one_at_a_time:
            self._team.run(self.isa, self._operations, ends, self.network.images, self.batch)
        return result

    def _build(self) -> list[Step]:
        threads, places, network = self.settings.threads, self._places, self.network
        steps = [load_step(places[0, 0], threads)]
        for place, node in enumerate(network.nodes):
            x, y = places[0, node.x], places[0, node.y]
            if isinstance(node, Conv):
                if strided(node):
                    steps.append(split_step(node, x, places[source(place, node)], threads))
                steps.append(self._conv(place, node, places[source(place, node)], y))
            elif isinstance(node, Pool):
                steps.append(pool_step(node, x, y, threads, longest(self.isa)))
            else:
                steps.append(mean_step(node, x, y, threads))
        return [*steps, store_step(places[0, network.result], threads)]

    def _conv(self, place: int, node: Conv, x: Place, y: Place) -> Step:
        z = None if node.add is None else self._places[0, node.add]
        conv = convolution(node, x, y, z)
        if self.choices.get(place) not in options(conv, self.isa):
            self.choices[place] = self._choose(place, conv)
        return conv_step(conv, self.choices[place], self.settings.threads)

    def _choose(self, place: int, conv: Convolution) -> Choice:
        if not self.settings.seconds:
            return guess(conv, self.isa)
        threads, seconds = self.settings.threads, self.settings.seconds
        choice, self.seconds[place] = fastest(conv, self.isa, threads, self._run_alone, seconds)
        return choice

    def _run_alone(self, step: Step) -> None:
        self._team.run(self.isa, _array([step.operation]), (0, 0), self.batch, self.batch)


def chunk_of(network: Network) -> int:
    """How many images lie side by side: all, or as many as make chunks of about the same size."""
    vectors = all(shape[1:] == (1, 1) for shape in network.shapes)
    most = ROWS_SIDE_BY_SIDE if vectors else SIDE_BY_SIDE
    chunks = ceil(network.images / most)
    return ceil(network.images / max(chunks, 1))


def _checked(planes: dict[Key, Planes]) -> dict[Key, Planes]:
    """An error if the planes take more memory than a real network's would."""
    if sum(each.size for each in planes.values()) > MOST:
        raise LamplighterError("this network takes more than 16 GB of memory", "compile it for fewer or smaller images")
    return planes


def _array(operations: Sequence[Operation]) -> "ctypes.Array[Operation]":
    return (Operation * len(operations))(*operations)
