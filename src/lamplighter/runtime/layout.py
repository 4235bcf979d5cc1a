"""Where the values of a network lie: planes with zeros between, so that a shift of the image is a constant offset."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from lamplighter.runtime.network import Conv, Network, Shape

LANES = 16  # the longest vector; planes are rounded up to it


@dataclass(frozen=True)
class Reach:
    """How far beyond an image a convolution reads, in positions."""

    up: int = 0
    down: int = 0
    left: int = 0
    right: int = 0

    def __or__(self, other: "Reach") -> "Reach":
        return Reach(
            max(self.up, other.up), max(self.down, other.down), max(self.left, other.left), max(self.right, other.right)
        )


@dataclass(frozen=True)
class Planes:
    """A value in memory.

    Args:
        channels: how many planes.
        height: rows of the image.
        width: columns of the image.
        pitch: positions from one row to the next.
        batch: images side by side at each position.
        margin: zeros, in floats, before the first plane, between planes and after the last.
        slack: floats after that, which may be read and mean nothing.
    """

    channels: int
    height: int
    width: int
    pitch: int
    batch: int
    margin: int
    slack: int

    @property
    def span(self) -> int:
        """Floats from the first position of the image to the last, that included."""
        return span(self.height, self.width, self.pitch, self.batch)

    @property
    def body(self) -> int:
        """The span in whole vectors, which is what a convolution writes."""
        return _rounded(self.span)

    @property
    def plane(self) -> int:
        """Floats from one plane to the next: an odd number of cache lines, else all would compete for a few places."""
        size = self.body + self.margin
        return size + LANES if size >= 8 * LANES and size % (2 * LANES) == 0 else size

    @property
    def size(self) -> int:
        """Floats in all."""
        return self.margin + self.channels * self.plane + self.slack


def span(height: int, width: int, pitch: int, batch: int) -> int:
    """Floats from the first position of an image to the last, that included."""
    return ((height - 1) * pitch + width) * batch


def _rounded(floats: int) -> int:
    """In whole vectors; short ones for tiny images, and none for a single number."""
    unit = 1 if floats == 1 else 8 if floats <= 8 else LANES
    return ceil(floats / unit) * unit


def strided(node: Conv) -> bool:
    """Whether a convolution reads its input in phases."""
    return node.stride != (1, 1)


def shifts(node: Conv, axis: int) -> tuple[int, int]:
    """The first and the last row (or column) of its view that a convolution's first output reads."""
    kernel, dilation = node.weight.shape[2 + axis], node.dilation[axis]
    pad, stride = node.pad[axis], node.stride[axis]
    return -pad // stride, ((kernel - 1) * dilation - pad) // stride


def view_shape(network: Network, node: Conv) -> Shape:
    """The shape of what a convolution reads: its input, or the planes of its input's phases."""
    channels, height, width = network.shapes[node.x]
    (down, along) = node.stride
    return channels * phases(node), ceil(height / down), ceil(width / along)


def phases(node: Conv) -> int:
    """How many phases of its input a convolution reads: a kernel of 1 without padding reads the first alone."""
    single = node.weight.shape[2:] == (1, 1) and node.pad == (0, 0)
    return 1 if single else node.stride[0] * node.stride[1]


def reach(network: Network, node: Conv) -> Reach:
    """How far beyond its view a convolution reads."""
    _, height, width = view_shape(network, node)
    _, out_height, out_width = network.shapes[node.y]
    (top, bottom), (left, right) = shifts(node, 0), shifts(node, 1)
    below, beyond = out_height - 1 + bottom - (height - 1), out_width - 1 + right - (width - 1)
    return Reach(max(-top, 0), max(below, 0), max(-left, 0), max(beyond, 0))


# Each value, by its number, and each view of phases, by the number of the node and -1.
Key = tuple[int, int]


def arrange(network: Network, batch: int) -> dict[Key, Planes]:
    """Planes for every value, and for every view in phases, of a network.

    What a convolution reads, what it adds and what it writes have the same pitch.
    """
    shapes: dict[Key, Shape] = {(0, value): shape for value, shape in enumerate(network.shapes)}
    readers: dict[Key, list[Conv]] = {}
    for place, node in enumerate(network.nodes):
        if isinstance(node, Conv):
            shapes[source(place, node)] = view_shape(network, node)
            readers.setdefault(source(place, node), []).append(node)
    pitches = _pitches(network, shapes, readers)
    planes = {}
    for key, (channels, height, width) in shapes.items():
        beyond, pitch = Reach(), pitches[key]
        for node in readers.get(key, []):
            beyond |= reach(network, node)
        margin = max(beyond.up * pitch + beyond.left, beyond.down * pitch + beyond.right) * batch
        slack = max([_end(network, node, pitch, batch) for node in readers.get(key, [])], default=0)
        planes[key] = Planes(channels, height, width, pitch, batch, _whole(margin), slack + LANES)
    return planes


def source(place: int, node: Conv) -> Key:
    """What the node at some place reads: a value, or a view of its own."""
    return (1, place) if strided(node) else (0, node.x)


def _whole(margin: int) -> int:
    return margin if margin <= 1 else ceil(margin / 8) * 8 if margin <= 8 else ceil(margin / LANES) * LANES


def _end(network: Network, node: Conv, pitch: int, batch: int) -> int:
    """Floats from the start of the last plane to the end of what a convolution may read there."""
    _, height, width = network.shapes[node.y]
    last = max(shifts(node, 0)[1] * pitch + shifts(node, 1)[1], 0) * batch
    return last + ceil(span(height, width, pitch, batch) / LANES) * LANES


def _pitches(network: Network, shapes: dict[Key, Shape], readers: dict[Key, list[Conv]]) -> dict[Key, int]:
    leader = {key: key for key in shapes}

    def find(key: Key) -> Key:
        while leader[key] != key:
            key = leader[key]
        return key

    for one, other in _ties(network):
        leader[find(one)] = find(other)
    pitches: dict[Key, int] = {}
    for key, (_, _, width) in shapes.items():
        beyond = Reach()
        for node in readers.get(key, []):
            beyond |= reach(network, node)
        needed = width + max(beyond.left, beyond.right)
        pitches[find(key)] = max(pitches.get(find(key), 0), needed)
    return {key: pitches[find(key)] for key in shapes}


def _ties(network: Network) -> Iterator[tuple[Key, Key]]:
    for place, node in enumerate(network.nodes):
        if isinstance(node, Conv):
            yield source(place, node), (0, node.y)
            if node.add is not None:
                yield (0, node.add), (0, node.y)
