"""prune_checkpoint(): read, decide, write; in bounded memory, and all or nothing."""

import os
import time
from collections.abc import Iterable, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamplighter.allocation import Method
from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.cluster import Cluster, joined
from lamplighter.checkpoint.cluster_reading import Spread
from lamplighter.checkpoint.cluster_writing import fill_shards
from lamplighter.checkpoint.output import Output, safetensors_name, write_rest
from lamplighter.checkpoint.passing import Decision, Passage
from lamplighter.checkpoint.planning import (
    Globs,
    Survey,
    budgets_for,
    check_chunk,
    check_request,
    check_unpacked,
    method_name,
    survey,
)
from lamplighter.checkpoint.progress import Tell, silent
from lamplighter.checkpoint.report import LayerReport, Report
from lamplighter.checkpoint.staging import check_place, check_room, remove_debris, staged
from lamplighter.checkpoint.stream import CHUNK, Stream
from lamplighter.checkpoint.threads import thread_count
from lamplighter.constraints import Constraints, Densities, checked_fraction
from lamplighter.errors import LamplighterError
from lamplighter.version import __version__

_OPEN = 8  # files that may wait to be flushed: each keeps a descriptor, of which there are few


@dataclass(frozen=True)
class Settings:
    """What is asked of the layers, whatever the checkpoint."""

    sparsity: float
    method: str | Method
    pattern: str | None
    include: Globs
    exclude: Globs
    constraints: Constraints
    threads: int
    chunk: int
    tell: Tell


def prune_checkpoint(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str] | None,
    *,
    sparsity: float,
    method: str | Method = "lamp",
    pattern: str | None = None,
    include: Globs = None,
    exclude: Globs = None,
    min_density: Densities = None,
    max_density: Densities = None,
    densities: Mapping[str, float] | None = None,
    force: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    chunk: int = CHUNK,
    progress: Tell = silent,
    ray: str | None = None,
) -> Report:
    """Prune a checkpoint of any size into another one, with the same masks as `prune` would give in memory.

    Reads it twice if its weights are of 16 bits, three times if of 32, a few MB at a time. The result is written beside
    its place and renamed when it is complete; `src` is never changed.

    Args:
        src: a `.safetensors` file, a file of torch (`.pt`, `.bin`), or a folder such as Hugging Face's.
        dst: the file or folder to write, always of safetensors; None for a dry run.
        sparsity: the fraction to remove of all weights that count.
        method: how many each layer keeps, as for `prune`.
        pattern: "row", or "N:M" such as "2:4".
        include: globs on tensor names that replace the default choice of layers.
        exclude: globs on tensor names to leave out.
        min_density: the least fraction a layer keeps, for all layers or by name or glob.
        max_density: the largest fraction a layer keeps, likewise.
        densities: fixed fractions for some layers, by name or glob.
        force: whether what is at `dst` may be replaced.
        dry_run: decide and report, but write nothing.
        threads: how many read, mask and write; as many as there are processors if None. On a cluster: in each task,
            each on a core of its own; one if None. The bytes are the same.
        chunk: how many bytes each thread reads at once. The bytes are the same.
        progress: is told a stage ("reading" or "writing"), how many bytes of it are done, and how many there are.
        ray: the address of a Ray cluster whose nodes read and write, in folders that they all share: "auto", "local",
            or host:port of its head. The bytes are the same.

    >>> import tempfile
    >>> import torch
    >>> from safetensors.torch import load_file, save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"fc.weight": torch.tensor([[3.0, -1.0], [2.0, 4.0]])}, f"{folder}/model.safetensors")
    ...     report = prune_checkpoint(f"{folder}/model.safetensors", f"{folder}/sparse.safetensors", sparsity=0.5)
    ...     print(report.kept, report.reached, load_file(f"{folder}/sparse.safetensors")["fc.weight"].tolist())
    2 0.5 [[3.0, 0.0], [0.0, 4.0]]
    """
    begun = time.perf_counter()
    check_request(sparsity, method, pattern)
    constraints = Constraints(
        _plain(min_density, "min_density"), _plain(max_density, "max_density"), _plain(densities, "densities")
    )
    many, size = thread_count(threads, spread=ray is not None), check_chunk(chunk)
    globs = _globs(include), _globs(exclude)
    settings = Settings(sparsity, method, pattern, *globs, constraints, many, size, progress)
    checkpoint = Checkpoint(src)
    check_unpacked(checkpoint)
    output = Output(checkpoint, {}, None if checkpoint.files.folder or dst is None else Path(dst).name)
    if dst is not None:
        _check_apart(Path(src), Path(dst), output)
        target = Path(os.path.realpath(dst))
        if not dry_run:
            remove_debris(target)
        check_place(target, folder=checkpoint.files.folder, force=force, names=output.names())
        check_room(target, output.nbytes())
    elif not dry_run:
        raise LamplighterError("no place is named for the result", "name a file or folder, or ask for a dry run")
    with joined(ray, many) as cluster:
        found = _read(checkpoint, settings, cluster)
        decision = _decide(found, settings)
        record = _record(found, settings, decision.budgets)
        output = Output(checkpoint, record, output.file)
        if dst is not None and not dry_run:
            _write(output, decision, found.source, settings, Path(dst), force=force)
    written = None if dry_run or dst is None else str(dst)
    return _report(found, settings, decision.budgets, output, (written, time.perf_counter() - begun))


def _read(checkpoint: Checkpoint, settings: Settings, cluster: Cluster | None) -> Survey:
    return survey(
        checkpoint,
        settings.include,
        settings.exclude,
        threads=settings.threads,
        chunk=settings.chunk,
        tell=settings.tell,
        cluster=cluster,
    )


def _decide(found: Survey, settings: Settings) -> Decision:
    budgets = budgets_for(found, settings.sparsity, settings.method, settings.pattern, settings.constraints)
    cuts = {} if settings.pattern is not None else found.spectra.cuts(budgets)
    return Decision(found.regions, cuts, budgets, settings.pattern)


def _write(
    output: Output, decision: Decision, source: Stream | Spread, settings: Settings, dst: Path, *, force: bool
) -> None:
    folder = output.checkpoint.files.folder
    place = staged(dst, folder=folder, force=force, needed=output.nbytes(), names=output.names(), mode=output.mode())
    with place as part:
        if isinstance(source, Spread):
            fill_shards(output, decision, source, part, settings.tell)
        else:
            _write_here(output, decision, settings, part)
        if folder:
            write_rest(output, part)
        output.checkpoint.check_unchanged()


def _write_here(output: Output, decision: Decision, settings: Settings, root: Path) -> None:
    checkpoint = output.checkpoint
    passage = Passage(checkpoint, decision, settings.threads, settings.chunk, settings.tell)
    # Writing to the disk what is complete goes on while the next shard is masked.
    with ThreadPoolExecutor(1) as flushing:
        flushed: list[Future[None]] = []
        for shard in checkpoint.shards:
            if len(flushed) >= _OPEN:
                flushed[-_OPEN].result()
            path = output.path_of(shard, root)
            output.make(shard, path)
            writer = passage.write_shard(shard, path, output.described(shard), output.metadata(shard))
            flushed.append(flushing.submit(writer.close))
        for each in flushed:
            each.result()


def _check_apart(src: Path, dst: Path, output: Output) -> None:
    """An error if the result would take the place of what is read, or lie in it."""
    source, target = Path(os.path.realpath(src)), Path(os.path.realpath(dst))
    same = target.exists() and source.samefile(target)
    if same or source == target:
        raise LamplighterError(
            f"{dst} is the checkpoint that is read", "write to another place: nothing is done in place"
        )
    if target.is_relative_to(source) or source.is_relative_to(target):
        raise LamplighterError(f"one of {src} and {dst} lies in the other", "write to a place beside the checkpoint")
    names = [output.name_of(shard) for shard in output.checkpoint.shards]
    if len(set(names)) < len(names):
        raise LamplighterError(f"files of {src} would get the same name in {dst}", "keep one checkpoint to a folder")
    if output.file is None and target.suffix == ".safetensors":
        raise LamplighterError(f"the result is a folder, but {dst} is named like a file", "name a folder")
    if output.file is not None and target.suffix != ".safetensors":
        raise LamplighterError(
            f"{dst} is no name for a safetensors file", f"for example {safetensors_name(Path(dst).name or 'pruned')}"
        )


def _record(found: Survey, settings: Settings, budgets: Mapping[str, int]) -> dict[str, Any]:
    """How the result was made, as its metadata say it: no time and no place, so that the same gives the same bytes."""
    constraints = settings.constraints
    asked = {
        "pattern": settings.pattern,
        "include": settings.include,
        "exclude": settings.exclude,
        "min_density": constraints.least,
        "max_density": constraints.most,
        "densities": constraints.fixed,
    }
    return {
        "version": __version__,
        "method": method_name(settings.method),
        "sparsity": float(settings.sparsity),
        "weights": found.total,
        "kept": sum(budgets.values()),
        "layers": len(budgets),
    } | {name: value for name, value in asked.items() if value is not None}


def _globs(given: Globs) -> Globs:
    """Globs as a list, so that they can be looked at more than once; what they are not is refused elsewhere."""
    if isinstance(given, Set):
        return sorted(given, key=str)  # sets have another order in every process, and the record has to have one
    return [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else given


def _plain(given: Any, what: str) -> Any:  # noqa: ANN401
    """Densities as plain numbers, as the record of how the result was made holds them; an error if they are none."""
    if isinstance(given, Mapping):
        return {glob: checked_fraction(density, f"{what}[{glob!r}]") for glob, density in given.items()}
    return None if given is None else checked_fraction(given, what)


def _report(
    found: Survey, settings: Settings, budgets: Mapping[str, int], output: Output, result: tuple[str | None, float]
) -> Report:
    checkpoint, regions = found.checkpoint, found.regions
    layers = tuple(
        LayerReport(name, region.shape, checkpoint.entries[region.tensors[0]].dtype, region.size, budgets[name])
        for name, region in regions.items()
    )
    masked = {tensor for region in regions.values() for tensor in region.tensors}
    return Report(
        str(checkpoint.path),
        result[0],
        method_name(settings.method),
        settings.pattern,
        float(settings.sparsity),
        layers,
        len(checkpoint) - len(masked),
        checkpoint.nbytes,
        output.nbytes(),
        result[1],
        tuple(str(path) for path in checkpoint.files.left_out),
        tuple(str(path) for path in checkpoint.files.unpruned),
        tuple(checkpoint.dropped),
    )
