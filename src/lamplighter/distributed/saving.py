"""Masks that lie in several processes, written to one file: a layer's bits at a time come together where it is written.

The file has the same bytes as `mask_files` writes for a model in one process.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from lamplighter import bits
from lamplighter.checkpoint.writing import header_bytes
from lamplighter.distributed.agreement import Ranks
from lamplighter.distributed.collectives import summed_at_first
from lamplighter.distributed.parts import Part
from lamplighter.errors import LamplighterError
from lamplighter.mask_files import metadata_of, replacing

EXPANDED = 1 << 22  # entries that are expanded at once


def write_spread(
    path: Path, packed: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]], parts: Mapping[str, Part]
) -> None:
    """Write packed masks of which parts lie in several processes; all of these call this together."""
    mesh = max((part.mesh for part in parts.values()), key=lambda each: each.size())
    ranks = Ranks([mesh.get_group(dimension) for dimension in range(mesh.ndim) if mesh.size(dimension) > 1])
    ranks.agree(lambda: {"the masks to save": repr([(name, tuple(shape)) for name, shape in shapes.items()])})
    names = sorted(packed, key=str.encode)  # as safetensors orders them
    trouble: OSError | None = None
    with ExitStack() as stack:
        file: IO[bytes] | None = None
        with ranks.together():
            if not any(mesh.get_coordinate() or ()):
                file = stack.enter_context(_opened(path, names, shapes))
        for name in names:
            whole = packed[name] if name not in parts else _brought_together(parts[name], packed[name])
            if file is not None and trouble is None:
                trouble = _append(file, whole)
        with ranks.together():
            if trouble is not None:
                raise LamplighterError(
                    f"the masks could not be written to {path}: {trouble}", "is there room?"
                ) from trouble
            stack.pop_all().close()  # here, so that all know whether it worked, and that the file is there


@contextmanager
def _opened(path: Path, names: Sequence[str], shapes: Mapping[str, Sequence[int]]) -> Iterator[IO[bytes]]:
    """The file, with its header written."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        sizes = {name: (math.prod(shapes[name]) + 7) // 8 for name in names}
        file.write(header_bytes([(name, "U8", (size,)) for name, size in sizes.items()], metadata_of(shapes)))
        yield file


def _append(file: IO[bytes], whole: Tensor) -> OSError | None:
    """Write a layer's bits; what went wrong is told later, since the others go on."""
    try:
        file.write(whole.cpu().numpy().tobytes())
    except OSError as error:
        return error
    return None


def _brought_together(part: Part, packed: Tensor) -> Tensor:
    """The bits of a whole layer in the first process; in the others something of the same size."""
    if not part.groups:
        return packed
    whole = spread_out(part, packed.cpu())
    for group in part.groups:
        summed_at_first(whole, group)  # no two processes have a bit in the same place, so that nothing is carried
    return whole


def spread_out(part: Part, packed: Tensor) -> Tensor:
    """The packed mask of a whole layer, of which only what lies here is set."""
    size, width, local = math.prod(part.whole), math.prod(part.whole[1:]), math.prod(part.shape[1:])
    result = torch.zeros((size + 7) // 8, dtype=torch.uint8)
    if not math.prod(part.shape):
        return result
    step = max(EXPANDED // width // 8, 1) * 8  # rows, so that each block begins with a byte
    for start in range(0, part.whole[0], step):
        stop = min(start + step, part.whole[0])
        first, last = np.searchsorted(part.places[0], [start, stop]).tolist()
        begin = first * local // 8
        flat = bits.unpack(packed[begin : (last * local + 7) // 8], (last * local - 8 * begin,))
        rows = np.zeros((stop - start, *part.whole[1:]), np.bool_)
        places = np.ix_(part.places[0][first:last] - start, *part.places[1:])
        rows[places] = flat[first * local - 8 * begin :].view(last - first, *part.shape[1:]).numpy()
        result[start * width // 8 : (stop * width + 7) // 8] = bits.pack(torch.from_numpy(rows))
    return result
