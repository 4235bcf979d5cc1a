"""Networks in files, `.lamp`: a header in JSON, then weights and where they are. See docs/lamp-format.md."""

import json
import os
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from lamplighter.errors import LamplighterError
from lamplighter.runtime.checking import HEAVIEST, check
from lamplighter.runtime.network import Conv, Mean, Network, Node, Pair, Pool, Sparse
from lamplighter.runtime.steps import Choice

MAGIC = b"LAMPNET\n"
VERSION = 1
FIXED = len(MAGIC) + 4 + 8  # magic, checksum, length of the header
GAPS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@dataclass(frozen=True)
class Tuned:
    """How a network was found to run fastest, and where.

    Args:
        isa: the instruction set.
        threads: how many worked together.
        choices: of each convolution, by its place among the nodes.
    """

    isa: str
    threads: int
    choices: Mapping[int, Choice]


def write(path: Path, network: Network, tuned: Tuned | None = None) -> None:
    """Write a network: to a temporary name first, then renamed, so that the file is never half-written."""
    data = encode(network, tuned)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path) -> tuple[Network, Tuned | None]:
    """The network that `write` wrote; an error if the file is damaged."""
    return decode(path.read_bytes(), str(path))


def encode(network: Network, tuned: Tuned | None = None) -> bytes:
    """The bytes of a file."""
    parts: list[bytes] = []
    nodes = [_describe(node, parts) for node in network.nodes]
    header: dict[str, Any] = {
        "version": VERSION,
        "input": network.input_shape,
        "output": network.output_shape,
        "values": network.shapes,
        "result": network.result,
        "nodes": nodes,
    }
    if tuned is not None:
        choices = [[place, c.way, c.lanes, c.group, c.block] for place, c in sorted(tuned.choices.items())]
        header["tuned"] = {"isa": tuned.isa, "threads": tuned.threads, "choices": choices}
    text = json.dumps(header, separators=(",", ":")).encode()
    rest = b"".join((len(text).to_bytes(8, "little"), text, *parts))
    return MAGIC + zlib.crc32(rest).to_bytes(4, "little") + rest


def decode(data: bytes, name: str) -> tuple[Network, Tuned | None]:
    """The network in the bytes of a file.

    Args:
        data: the bytes.
        name: of the file, for messages.
    """
    if len(data) < FIXED or not data.startswith(MAGIC):
        _damaged(name, "it does not begin as a .lamp file does")
    start = len(MAGIC)
    if zlib.crc32(data[start + 4 :]) != int.from_bytes(data[start : start + 4], "little"):
        _damaged(name, "its checksum is wrong")
    length = int.from_bytes(data[start + 4 : FIXED], "little")
    if length > len(data) - FIXED:
        _damaged(name, "it ends within its header")
    try:
        return _from_header(json.loads(data[FIXED : FIXED + length]), data[FIXED + length :])
    except LamplighterError as error:
        _damaged(name, error.message)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        _damaged(name, f"its header is wrong ({type(error).__name__}: {error})")


def _from_header(header: dict[str, Any], payload: bytes) -> tuple[Network, Tuned | None]:
    if header["version"] != VERSION:
        raise LamplighterError(f"it has version {header['version']}, this release reads version {VERSION}")
    reader = _Reader(payload)
    nodes = tuple(_node(described, reader) for described in header["nodes"])
    if reader.left:
        raise LamplighterError(f"{reader.left} bytes follow its last weight")
    values = tuple(_triple(shape) for shape in header["values"])
    network = Network(
        _integers(header["input"]), _integers(header["output"]), values, nodes, _integer(header["result"])
    )
    check(network)
    found = header.get("tuned")
    if found is None:
        return network, None
    choices = {_integer(place): Choice(str(way), *_integers(rest)) for place, way, *rest in found["choices"]}
    return network, Tuned(str(found["isa"]), _integer(found["threads"]), choices)


class _Reader:
    """Takes arrays from bytes, in order."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    @property
    def left(self) -> int:
        """Bytes not taken yet."""
        return len(self._data) - self._place

    def take(self, count: int, dtype: Any) -> NDArray[Any]:  # noqa: ANN401
        """The next `count` numbers."""
        size = count * np.dtype(dtype).itemsize
        if count < 0 or size > self.left:
            raise LamplighterError("it ends within its weights")
        found = np.frombuffer(self._data, np.dtype(dtype).newbyteorder("<"), count, self._place)
        self._place += size
        return found.astype(dtype)


def _describe(node: Node, parts: list[bytes]) -> dict[str, Any]:
    described: dict[str, Any] = {"kind": type(node).__name__.lower(), "x": node.x, "y": node.y}
    if isinstance(node, Pool):
        described |= {"kernel": node.kernel, "stride": node.stride, "pad": node.pad, "average": node.average}
    elif isinstance(node, Conv):
        described |= {"name": node.name, "stride": node.stride, "pad": node.pad, "dilation": node.dilation}
        described |= {"groups": node.groups, "add": node.add, "relu": node.relu, "shape": node.weight.shape}
        width, gaps, wide = _gaps(node.weight.indices)
        described |= {"weights": int(gaps.size), "gap": width, "wide": int(wide.size)}
        arrays: Sequence[NDArray[Any]] = (node.bias, node.weight.values, gaps, wide)
        parts += [array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays]
    return described


def _node(described: dict[str, Any], reader: _Reader) -> Node:
    kind, x, y = described["kind"], _integer(described["x"]), _integer(described["y"])
    if kind == "mean":
        return Mean(x, y)
    if kind == "pool":
        kernel, stride, pad = (_pair(described[key]) for key in ("kernel", "stride", "pad"))
        return Pool(x, y, kernel, stride, pad, _truth(described["average"]))
    if kind != "conv":
        raise LamplighterError(f"it has a node of unknown kind {kind!r}")
    shape = _integers(described["shape"])
    if len(shape) != 4:
        raise LamplighterError(f"it has a weight of shape {shape}")
    weights, wide = _integer(described["weights"]), _integer(described["wide"])
    bias, values = reader.take(shape[0], np.float32), reader.take(weights, np.float32)
    gaps = reader.take(weights, GAPS[_integer(described["gap"])])
    weight = Sparse((shape[0], shape[1], shape[2], shape[3]), _places(gaps, reader.take(wide, np.uint32)), values)
    add = None if described["add"] is None else _integer(described["add"])
    stride, pad, dilation = (_pair(described[key]) for key in ("stride", "pad", "dilation"))
    groups, relu = _integer(described["groups"]), _truth(described["relu"])
    return Conv(str(described["name"]), x, y, weight, bias, stride, pad, dilation, groups, add, relu)


def _gaps(indices: NDArray[np.int64]) -> tuple[int, NDArray[Any], NDArray[np.uint32]]:
    """How far each index is from the one before: in as few bytes as it takes, larger ones apart."""
    distances = np.diff(indices, prepend=-1) - 1
    sizes = {width: width * distances.size + 4 * int((distances >= 2 ** (8 * width) - 1).sum()) for width in (1, 2)}
    width = min(sizes, key=sizes.__getitem__)
    most = 2 ** (8 * width) - 1
    if distances.size and distances.max() >= 2**32:
        raise LamplighterError("a layer with more than 4,294,967,295 zeros in a row cannot be written")
    return width, np.minimum(distances, most).astype(GAPS[width]), distances[distances >= most].astype(np.uint32)


def _places(gaps: NDArray[Any], wide: NDArray[np.uint32]) -> NDArray[np.int64]:
    most = np.iinfo(gaps.dtype).max
    distances = gaps.astype(np.int64)
    larger = distances == most
    if int(larger.sum()) != wide.size:
        raise LamplighterError("its weights' places are not told")
    distances[larger] = wide
    places = np.cumsum(distances + 1) - 1
    if places.size and places[-1] >= HEAVIEST:
        raise LamplighterError("it has weights outside their layer")
    return places


def _integer(value: Any) -> int:  # noqa: ANN401
    if type(value) is not int or not -(2**62) < value < 2**62:
        raise LamplighterError(f"{str(value)[:40]} stands where a number was expected")
    return value


def _integers(values: Any) -> tuple[int, ...]:  # noqa: ANN401
    return tuple(_integer(value) for value in values)


def _pair(values: Any) -> Pair:  # noqa: ANN401
    one, other = _integers(values)
    return one, other


def _triple(values: Any) -> tuple[int, int, int]:  # noqa: ANN401
    channels, height, width = _integers(values)
    return channels, height, width


def _truth(value: Any) -> bool:  # noqa: ANN401
    if type(value) is not bool:
        raise LamplighterError(f"{str(value)[:40]} stands where true or false was expected")
    return value


def _damaged(name: str, why: str) -> NoReturn:
    raise LamplighterError(f"{name} cannot be read: {why}", "write it again with fast.save")
