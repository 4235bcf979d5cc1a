"""The operations that carry out a network: what each node becomes, with every bound checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from lamplighter.errors import LamplighterError
from lamplighter.runtime import operation as op
from lamplighter.runtime.buffers import Place
from lamplighter.runtime.encoding import Entries, Rows, by_row, dense_rows, entries, grouped
from lamplighter.runtime.layout import LANES, Planes, phases
from lamplighter.runtime.network import Conv, Mean, Pool
from lamplighter.runtime.operation import Arrays, Integers, Operation, operation

WIDEST = 16384  # as in kernels.c
SHARES = 8  # tasks for each thread, so that none waits long for another


@dataclass(frozen=True)
class Choice:
    """How a convolution is carried out.

    Args:
        way: "conv", "dot" (one position of one image, row by row) or "dense" (the same with the zeros).
        lanes: floats in a vector.
        group: output channels computed together.
        block: vectors of a plane computed together.
    """

    way: str
    lanes: int = 4
    group: int = 1
    block: int = 1


@dataclass(frozen=True)
class Step:
    """An operation and the arrays it points to."""

    operation: Operation
    arrays: Sequence[object]


@dataclass(frozen=True)
class Convolution:
    """A convolution with everything it reads and writes in its place.

    Args:
        node: what to compute.
        entries: its weights, as offsets into `x`.
        x: what it reads.
        y: what it writes.
        z: what it adds.
        mask: which positions of `y` belong to the image.
    """

    node: Conv
    entries: Entries
    x: Place
    y: Place
    z: Place | None
    mask: Integers


def convolution(node: Conv, x: Place, y: Place, z: Place | None) -> Convolution:
    """Put a convolution in its place."""
    output = (y.planes.channels, y.planes.height, y.planes.width)
    return Convolution(node, entries(node, x.planes, output), x, y, z, mask_of(y.planes))


def mask_of(planes: Planes) -> Integers:
    """-1 where a float of a plane's body belongs to the image, 0 elsewhere."""
    rows = np.zeros((planes.height, planes.pitch * planes.batch), np.int32)
    rows[:, : planes.width * planes.batch] = -1
    mask = np.zeros(ceil(planes.span / LANES) * LANES, np.int32)
    mask[: planes.span] = rows.reshape(-1)[: planes.span]
    return mask


def conv_step(conv: Convolution, choice: Choice, threads: int) -> Step:
    """The operation of a convolution, carried out in some way."""
    make = _blocks if choice.way == "conv" else _dots
    return make(conv, choice, threads)


def _blocks(conv: Convolution, choice: Choice, threads: int) -> Step:
    y = conv.y.planes
    vectors = ceil(y.span / choice.lanes)
    if vectors * choice.lanes > y.body:
        raise LamplighterError(f"{conv.node.name}: vectors of {choice.lanes} are too long for its image")
    _check_reads(conv, vectors * choice.lanes)
    _check_same_pitch(conv)
    found = grouped(conv.entries, choice.group)
    blocks, groups = ceil(vectors / choice.block), found.rows.size // choice.group
    chunk = groups if threads == 1 else max(groups * blocks // (SHARES * threads), 1)
    arrays: Arrays = {
        "rows": found.rows,
        "counts": found.counts,
        "begins": found.begins,
        "offsets": found.offsets,
        "weights": found.weights,
        "bias": conv.node.bias,
        "mask": conv.mask,
    }
    made = operation(
        arrays,
        **_between(conv),
        kind=op.CONV,
        lanes=choice.lanes,
        group=choice.group,
        block=choice.block,
        groups=groups,
        vectors=vectors,
        chunk=chunk,
        tasks=blocks * ceil(groups / chunk),
    )
    return Step(made, (arrays, conv))


def _dots(conv: Convolution, choice: Choice, threads: int) -> Step:
    if conv.y.planes.span != 1:
        raise LamplighterError(f"{conv.node.name}: only single numbers are computed row by row")
    _check_reads(conv, 1)
    x = conv.x.planes
    if choice.way == "dense":
        if not gapless(x):
            raise LamplighterError(f"{conv.node.name}: there are gaps in its input")
        rows: Rows = dense_rows(conv.entries, x.channels)
    else:
        rows = by_row(conv.entries)
    outputs = conv.entries.outputs
    chunk = outputs if threads == 1 else max(outputs // (SHARES * threads), 1)
    arrays: Arrays = {
        "begins": rows.begins,
        "columns": rows.columns,
        "offsets": rows.offsets,
        "weights": rows.weights,
        "bias": conv.node.bias,
    }
    tasks = {"lanes": choice.lanes, "channels": outputs, "chunk": chunk, "tasks": ceil(outputs / chunk)}
    return Step(operation(arrays, kind=op.DOT, **_between(conv), **tasks), (arrays, conv))


def gapless(planes: Planes) -> bool:
    """Whether the values of one image's single position lie side by side."""
    return planes.plane == 1 and planes.margin == 0


def _between(conv: Convolution) -> dict[str, int]:
    """What every convolution says of its places."""
    return {
        "relu": int(conv.node.relu),
        "x": conv.x.address,
        "y": conv.y.address,
        "z": 0 if conv.z is None else conv.z.address,
        "x_plane": conv.x.planes.plane,
        "y_plane": conv.y.planes.plane,
        "z_plane": 0 if conv.z is None else conv.z.planes.plane,
    }


def _check_reads(conv: Convolution, floats: int) -> None:
    """An error if an entry would read outside the input: then the plan is wrong, and nothing is to be run."""
    offsets, planes = conv.entries.offsets, conv.x.planes
    outputs = conv.y.planes.channels
    if conv.entries.outputs != outputs or conv.node.bias.size != outputs or conv.mask.size < floats:
        raise LamplighterError(f"{conv.node.name} has {conv.entries.outputs} outputs, expected {outputs}")
    if offsets.size == 0:
        return
    first, last = planes.margin + int(offsets.min()), planes.margin + int(offsets.max()) + floats
    if first < 0 or last > conv.x.memory.size:
        raise LamplighterError(f"{conv.node.name} would read outside its input: {first} to {last}")


def _check_same_pitch(conv: Convolution) -> None:
    others = [conv.x.planes, *([] if conv.z is None else [conv.z.planes])]
    if any((each.pitch, each.batch) != (conv.y.planes.pitch, conv.y.planes.batch) for each in others):
        raise LamplighterError(f"{conv.node.name}: its input and output lie differently")
    if conv.z is not None and (conv.z.planes.body, conv.z.planes.channels) != (
        conv.y.planes.body,
        conv.y.planes.channels,
    ):
        raise LamplighterError(f"{conv.node.name} adds a value of another shape")


def _simple(kind: int, x: Place | None, y: Place | None, threads: int, **fields: float) -> Step:
    """An operation without weights, shared out by channel."""
    places: dict[str, int] = {}
    some = x or y
    assert some is not None
    channels = some.planes.channels
    for name, side, place in (("x", "in", x), ("y", "out", y)):
        if place is None:
            continue
        planes = place.planes
        places |= {name: place.address, f"{name}_plane": planes.plane, f"{side}_h": planes.height}
        places |= {f"{side}_w": planes.width, f"{side}_pitch": planes.pitch, "batch": planes.batch}
    chunk = channels if threads == 1 else ceil(channels / (SHARES * threads))
    tasks = {"channels": channels, "chunk": chunk, "tasks": ceil(channels / chunk)}
    return Step(operation({}, kind=kind, **{**places, **tasks, **fields}), (x, y))


def load_step(y: Place, threads: int) -> Step:
    """From the images that are given to the first value."""
    planes = y.planes
    return _simple(op.LOAD, None, y, threads, in_h=planes.height, in_w=planes.width)


def store_step(x: Place, threads: int) -> Step:
    """From the last value to what is returned."""
    return _simple(op.STORE, x, None, threads)


def split_step(node: Conv, x: Place, y: Place, threads: int) -> Step:
    """The phases of a convolution's input."""
    down, along = node.stride
    planes = x.planes.channels * phases(node), ceil(x.planes.height / down), ceil(x.planes.width / along)
    if planes != (y.planes.channels, y.planes.height, y.planes.width):
        raise LamplighterError(f"{node.name}: its input does not split into {planes}")
    return _simple(op.SPLIT, x, y, threads, stride_h=down, stride_w=along, phases=phases(node))


def pool_step(node: Pool, x: Place, y: Place, threads: int, lanes: int) -> Step:
    """A pool."""
    if x.planes.width * x.planes.batch > WIDEST:
        raise LamplighterError(f"pooling takes rows of at most {WIDEST} numbers", "compile for fewer images at a time")
    for axis, (size, out) in enumerate(((x.planes.height, y.planes.height), (x.planes.width, y.planes.width))):
        kernel, stride, pad = node.kernel[axis], node.stride[axis], node.pad[axis]
        if 2 * pad > kernel or (out - 1) * stride - pad >= size or stride < 1 or x.planes.channels != y.planes.channels:
            raise LamplighterError(f"a pool of {kernel} with stride {stride} does not give {out} of {size}")
    pairs = zip(("kernel", "stride", "pad"), (node.kernel, node.stride, node.pad), strict=True)
    fields: dict[str, float] = {
        f"{name}_{axis}": value[place] for name, value in pairs for place, axis in enumerate("hw")
    }
    fields |= {"lanes": lanes, "average": int(node.average), "scale": 1 / prod(node.kernel)}
    return _simple(op.POOL, x, y, threads, **fields)


def mean_step(node: Mean, x: Place, y: Place, threads: int) -> Step:
    """A mean over the image."""
    if y.planes.channels != x.planes.channels or (y.planes.height, y.planes.width) != (1, 1):
        raise LamplighterError(f"the mean of value {node.x} has another shape than value {node.y}")
    scale = 1 / (x.planes.height * x.planes.width)
    return _simple(op.MEAN, x, y, threads, scale=scale)
