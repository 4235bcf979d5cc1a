"""The weights of a convolution as the kernels read them: offsets and values, channel group by channel group."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamplighter.errors import LamplighterError
from lamplighter.runtime.layout import Planes, phases
from lamplighter.runtime.network import Conv, Shape
from lamplighter.runtime.operation import Floats, Integers

LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Entries:
    """The weights left of a convolution, by output channel and by where they read.

    Args:
        rows: the output channel of each.
        offsets: floats from an output's place to the input it reads; ascending for each output channel.
        values: the weights.
        outputs: how many output channels there are.
    """

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]
    values: Floats
    outputs: int


def entries(node: Conv, view: Planes, output: Shape) -> Entries:
    """The weights of a convolution that reads planes; those that would only ever read padding are left out."""
    outputs, inputs, _, _ = node.weight.shape
    row, channel, down, along = np.unravel_index(node.weight.indices, node.weight.shape)
    channel = channel + row // (outputs // node.groups) * inputs
    down_by, down_phase = np.divmod(down * node.dilation[0] - node.pad[0], node.stride[0])
    along_by, along_phase = np.divmod(along * node.dilation[1] - node.pad[1], node.stride[1])
    plane = channel * phases(node) + down_phase * node.stride[1] + along_phase
    offsets = plane * view.plane + (down_by * view.pitch + along_by) * view.batch
    useful = (down_by < view.height) & (down_by + output[1] > 0) & (along_by < view.width) & (along_by + output[2] > 0)
    row, offsets, values = row[useful], offsets[useful], node.weight.values[useful]
    if offsets.size and np.abs(offsets).max() > LARGEST:
        raise LamplighterError(f"{node.name} reads an input of more than 8 GB", "compile it for smaller images")
    order = np.lexsort((offsets, row))
    return Entries(row[order], offsets[order], values[order].astype(np.float32), outputs)


@dataclass(frozen=True)
class Grouped:
    """Entries as LAMP_CONV reads them; see kernels.h."""

    rows: Integers
    counts: Integers
    begins: NDArray[np.int64]
    offsets: Integers
    weights: Floats


def grouped(given: Entries, group: int) -> Grouped:
    """Output channels in groups, those with the most weights first; the entries of each group by class."""
    found = np.bincount(given.rows, minlength=given.outputs)
    order = np.argsort(-found, kind="stable")
    groups = -(-given.outputs // group)
    rows = np.full(groups * group, -1, np.int32)
    rows[: given.outputs] = order
    position = np.empty(given.outputs, np.int64)
    position[order] = np.arange(given.outputs)
    place, member = np.divmod(position[given.rows], group)
    by_place = np.lexsort((member, given.offsets, place))
    place, member, offsets = place[by_place], member[by_place], given.offsets[by_place]
    first = np.ones(place.size, bool)
    first[1:] = (place[1:] != place[:-1]) | (offsets[1:] != offsets[:-1])
    starts = np.flatnonzero(first)
    bits = (1 << member).astype(np.int64)
    classes = np.bitwise_or.reduceat(bits, starts) if starts.size else np.zeros(0, np.int64)
    slot = np.cumsum(first) - 1
    by_class = np.lexsort((offsets[starts], classes, place[starts]))
    rank = np.empty(starts.size, np.int64)
    rank[by_class] = np.arange(starts.size)
    weights = given.values[by_place][np.lexsort((member, rank[slot]))]
    many = (1 << group) - 1
    counts = np.bincount(place[starts] * many + classes - 1, minlength=groups * many)
    begins = np.zeros((groups, 2), np.int64)
    begins[1:, 0] = np.cumsum(counts.reshape(groups, many).sum(1))[:-1]
    begins[1:, 1] = np.cumsum(np.bincount(place, minlength=groups))[:-1]
    return Grouped(
        rows, counts.astype(np.int32), begins.reshape(-1), offsets[starts][by_class].astype(np.int32), weights
    )


@dataclass(frozen=True)
class Rows:
    """Entries as LAMP_DOT reads them; see kernels.h."""

    begins: NDArray[np.int64]
    columns: NDArray[np.uint16] | None
    offsets: Integers | None
    weights: Floats


def by_row(given: Entries) -> Rows:
    """Row by row, with 16-bit columns where they are enough."""
    begins = np.zeros(given.outputs + 1, np.int64)
    begins[1:] = np.cumsum(np.bincount(given.rows, minlength=given.outputs))
    short = given.offsets.size == 0 or (given.offsets.min() >= 0 and given.offsets.max() < 2**16)
    columns = given.offsets.astype(np.uint16) if short else None
    return Rows(begins, columns, None if short else given.offsets.astype(np.int32), given.values)


def dense_rows(given: Entries, inputs: int) -> Rows:
    """Row by row with the zeros, for an input without gaps."""
    weights = np.zeros((given.outputs, inputs), np.float32)
    weights[given.rows, given.offsets] = given.values
    begins = np.arange(given.outputs + 1, dtype=np.int64) * inputs
    return Rows(begins, None, None, weights.reshape(-1))
