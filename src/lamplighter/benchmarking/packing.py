"""How small packed files are, and how long packing and unpacking take, beside a plain copy of the same files."""

import filecmp
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median

import torch

from lamplighter.benchmarking.machine import settle
from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.packed_codec import CHUNK, raw
from lamplighter.checkpoint.packed_packing import pack
from lamplighter.checkpoint.packed_unpacking import unpack
from lamplighter.checkpoint.packed_verifying import verify
from lamplighter.checkpoint.prune import prune_checkpoint
from lamplighter.checkpoint.writing import Described, ShardWriter
from lamplighter.errors import LamplighterError

COPY, PACK, UNPACK, VERIFY = "copy", "pack", "unpack", "verify"
WORKS = (COPY, PACK, UNPACK, VERIFY)


@dataclass(frozen=True)
class Request:
    """What to measure.

    Args:
        gigabytes: the size of the model, about.
        sparsities: how far it is pruned.
        method: how that is shared out among its layers.
        repeats: runs of each, after one to warm up.
        threads: how many to use; one for each processor if None.
        folder: where the files are written; the system's place for temporary files if None.
    """

    gigabytes: float = 1.0
    sparsities: tuple[float, ...] = (0.5, 0.9, 0.99)
    method: str = "lamp"
    repeats: int = 3
    threads: int | None = None
    folder: Path | None = None

    def check(self) -> None:
        """Refuse what cannot be measured, before anything is."""
        if not self.gigabytes > 0:
            raise LamplighterError(f"the model is to take {self.gigabytes} GB, expected more than 0")
        for sparsity in self.sparsities:
            if not 0 <= sparsity <= 1:
                raise LamplighterError(f"sparsity is {sparsity}, expected a fraction from 0 to 1")
        if self.folder is not None and not self.folder.is_dir():
            raise LamplighterError(f"there is no folder {self.folder}", "name one that is there")
        place = self.folder or Path(tempfile.gettempdir())
        needed, free = int(4.2e9 * self.gigabytes), shutil.disk_usage(place).free
        if free < needed:
            raise LamplighterError(f"{place} has {free:,} bytes free, {needed:,} are needed", "name another --folder")


@dataclass(frozen=True)
class Row:
    """One sparsity.

    Args:
        sparsity: the fraction removed of the prunable weights.
        weights: how many of these there are.
        dense_bytes: the size of the pruned file.
        packed_bytes: the size of the packed one.
        bits: what the packed file takes for each prunable weight, tensors that are not prunable left out.
        seconds: how long each work took, run by run.
    """

    sparsity: float
    weights: int
    dense_bytes: int
    packed_bytes: int
    bits: float
    seconds: dict[str, tuple[float, ...]]

    @property
    def ideal_bits(self) -> float:
        """One bit for each weight and sixteen for each that is kept."""
        return 16 * (1 - self.sparsity) + 1

    def rate(self, work: str) -> float:
        """Bytes of the dense file that are dealt with in a second."""
        return self.dense_bytes / median(self.seconds[work])

    def copies(self, work: str) -> float:
        """How many plain copies of the dense file could be made meanwhile."""
        return median(self.seconds[work]) / median(self.seconds[COPY])


def units(request: Request) -> int:
    """How many times `measure` reports progress."""
    return 1 + len(request.sparsities) * (1 + len(WORKS) * (1 + request.repeats))


def measure(request: Request, progress: Callable[[str], None]) -> list[Row]:
    """Write a model of random weights, prune it, pack and unpack it, in turns with a plain copy.

    Files are read from the system's cache, and written to the disk until the system says that they are there, the copy
    as well as ours. `progress` is called with what was done.
    """
    request.check()
    with tempfile.TemporaryDirectory(prefix="lamp-bench-", dir=request.folder) as folder:
        model = Path(folder) / "model.safetensors"
        write_model(model, request.gigabytes)
        progress("model")
        return [_measure(model, sparsity, request, progress) for sparsity in request.sparsities]


def shapes(gigabytes: float) -> Iterator[Described]:
    """The tensors of a language model in bfloat16: width 2048, and as many layers as it takes."""
    width, inner, words = (2048, 5632, 32_000) if gigabytes >= 0.3 else (256, 704, 2000)
    each = sum(prod(shape) for _, shape in _layer(width, inner))
    layers = max(round((gigabytes * 5e8 - 2 * words * width) / each), 1)
    yield "model.embed_tokens.weight", "BF16", (words, width)
    for place in range(layers):
        for name, shape in _layer(width, inner):
            yield f"model.layers.{place}.{name}", "BF16", shape
    yield "model.norm.weight", "BF16", (width,)
    yield "lm_head.weight", "BF16", (words, width)


def _layer(width: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, rows in (("q", width), ("k", width // 8), ("v", width // 8), ("o", width)):
        yield f"self_attn.{name}_proj.weight", (rows, width)
    for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
        yield f"mlp.{name}_proj.weight", shape
    for name in ("input", "post_attention"):
        yield f"{name}_layernorm.weight", (width,)


def write_model(path: Path, gigabytes: float) -> None:
    """Write such a model, with random weights of a spread that differs from tensor to tensor."""
    generator = torch.Generator().manual_seed(0)
    described = list(shapes(gigabytes))
    with ShardWriter(path, described, {"format": "pt"}) as writer:
        for place, (name, _, shape) in enumerate(described):
            for start in range(0, prod(shape), CHUNK):
                noise = torch.randn(min(CHUNK, prod(shape) - start), generator=generator)
                words = noise.mul_(0.02 + 0.01 * (place % 5)).bfloat16().view(torch.int16)
                writer.write_at(name, 2 * start, raw(words))


def _measure(model: Path, sparsity: float, request: Request, progress: Callable[[str], None]) -> Row:
    pruned, packed, back = (model.with_name(f"{name}.safetensors") for name in ("pruned", "packed", "back"))
    threads = request.threads
    report = prune_checkpoint(model, pruned, sparsity=sparsity, method=request.method, force=True, threads=threads)
    progress(f"pruned to {sparsity:g}")
    works: dict[str, Callable[[], object]] = {
        COPY: lambda: _copy(pruned, back),
        PACK: lambda: pack(pruned, packed, force=True, threads=threads),
        UNPACK: lambda: unpack(packed, back, force=True, threads=threads),
        VERIFY: lambda: _check(verify(packed, model, threads=threads).ok),
    }
    seconds: dict[str, list[float]] = {name: [] for name in WORKS}
    for repeat in range(1 + request.repeats):
        for name, work in works.items():
            taken = _timed(work)
            if repeat > 0:  # the first time round warms up
                seconds[name].append(taken)
            progress(f"{name} at {sparsity:g}")
    _check(filecmp.cmp(pruned, back, shallow=False))
    counted = {layer.name for layer in report.layers}
    rest = sum(entry.nbytes for name, entry in Checkpoint(pruned).entries.items() if name not in counted)
    bits = 8 * (packed.stat().st_size - rest) / report.total
    sizes = pruned.stat().st_size, packed.stat().st_size
    return Row(sparsity, report.total, *sizes, bits, {name: tuple(taken) for name, taken in seconds.items()})


def _timed(work: Callable[[], object]) -> float:
    settle()
    os.sync()  # what others have written would be waited for by whoever writes next
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _copy(source: Path, target: Path) -> None:
    """A plain copy, in the system itself where it can do that, on the disk when this returns."""
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _check(same: bool) -> None:
    if not same:
        raise LamplighterError("what came back is not what was packed", "this is a defect: please report it")
