"""What pruning sends between processes, and how long it takes, for one process and for several on this machine."""

import hashlib
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from lamplighter.distributed.collectives import measured
from lamplighter.errors import LamplighterError
from lamplighter.pruning import prune

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
PLACEMENTS = {"rows": 0, "columns": 1}
LONGEST = timedelta(minutes=5)


@dataclass(frozen=True)
class Request:
    """What to measure.

    Args:
        processes: of how many, each in turn.
        dtypes: of the weights.
        layers: how many there are.
        side: rows and columns of each.
        placement: what of a layer a process holds, rows or columns.
        sparsity: the fraction to remove.
        method: how that is shared out among the layers.
        repeats: runs of each, after one to warm up.
    """

    processes: tuple[int, ...] = (1, 2, 3, 4)
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    layers: int = 4
    side: int = 2048
    placement: str = "rows"
    sparsity: float = 0.9
    method: str = "lamp"
    repeats: int = 3

    def check(self) -> None:
        """Refuse what cannot be measured, before anything is."""
        for processes in self.processes:
            if not 1 <= processes <= 64:
                raise LamplighterError(f"{processes} processes are asked for, expected 1 to 64")
        for dtype in self.dtypes:
            if dtype not in DTYPES:
                raise LamplighterError(f"dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
        if self.placement not in PLACEMENTS:
            raise LamplighterError(f"placement is {self.placement!r}, expected one of {', '.join(PLACEMENTS)}")
        if self.layers < 1 or self.side < 1:
            raise LamplighterError(
                f"{self.layers} layers of side {self.side} are asked for, expected 1 or more of each"
            )


@dataclass(frozen=True)
class Row:
    """One dtype in some processes.

    Args:
        dtype: of the weights.
        processes: how many hold them.
        weights: how many there are in all.
        layers: how many layers these are.
        nbytes: the size of all weights.
        seconds: how long pruning took the slowest process, run by run.
        sent: how many bytes the process sent that sent most.
        calls: in how many messages.
        masks: a digest of the masks: the same for any number of processes.
    """

    dtype: str
    processes: int
    weights: int
    layers: int
    nbytes: int
    seconds: tuple[float, ...]
    sent: int
    calls: int
    masks: str

    @property
    def median(self) -> float:
        """The median of the runs."""
        return median(self.seconds)

    @property
    def sent_per_layer(self) -> float:
        """Bytes that a process sends for each layer."""
        return self.sent / self.layers

    @property
    def share(self) -> float:
        """What a process sends, as a fraction of all weights' bytes."""
        return self.sent / self.nbytes


def units(request: Request) -> int:
    """How many times `measure` reports progress."""
    return len(request.processes) * len(request.dtypes)


def measure(request: Request, progress: Callable[[str], None]) -> list[Row]:
    """Prune the same random weights in each number of processes, which talk by gloo on this machine.

    Each process has one thread. `progress` is called with what was done.
    """
    request.check()
    found = []
    for processes in request.processes:
        for row in _in_processes(processes, request):
            found.append(row)
            progress(f"{row.dtype}, {processes} processes")
    return sorted(found, key=lambda row: (request.dtypes.index(row.dtype), row.processes))


def agreed(rows: list[Row]) -> bool:
    """Whether any number of processes gave the same masks."""
    return len({(row.dtype, row.masks) for row in rows}) == len({row.dtype for row in rows})


def _in_processes(processes: int, request: Request) -> Iterator[Row]:
    """The rows of one number of processes, as they come."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="lamp-bench-") as folder:
        workers = [
            context.Process(target=_work, args=(rank, processes, folder, request, theirs), daemon=True)
            for rank in range(processes)
        ]
        for worker in workers:
            worker.start()
        theirs.close()
        try:
            for _ in request.dtypes:
                row: Row = ours.recv()
                yield row
        except EOFError as error:
            raise LamplighterError(
                f"a process ended while {processes} of them pruned", "its own message says why"
            ) from error
        finally:
            for worker in workers:
                worker.join(10)
                if worker.is_alive():
                    worker.kill()


def _work(rank: int, processes: int, folder: str, request: Request, results: Connection) -> None:
    """What one process does."""
    torch.set_num_threads(1)
    store = FileStore(str(Path(folder) / "store"), processes)
    dist.init_process_group("gloo", rank=rank, world_size=processes, store=store, timeout=LONGEST)
    for dtype in request.dtypes:
        row = _measured(dtype, folder, request)
        if rank == 0:
            results.send(row)
    dist.barrier()  # nobody leaves while another still talks to it
    dist.destroy_process_group()


def _measured(dtype: str, folder: str, request: Request) -> Row:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    seconds: list[float] = []
    for _ in range(1 + request.repeats):
        weights = _weights(dtype, request)
        spread = {
            name: distribute_tensor(value, mesh, [Shard(PLACEMENTS[request.placement])], src_data_rank=None)
            for name, value in weights.items()
        }
        dist.barrier()
        begun = time.perf_counter()
        with measured() as traffic:
            masks = prune(spread, request.sparsity, request.method)
        seconds.append(_largest(time.perf_counter() - begun))
    path = Path(folder) / f"{dtype}.safetensors"
    masks.save(path)
    size = sum(value.numel() for value in weights.values())
    return Row(
        dtype,
        dist.get_world_size(),
        size,
        len(weights),
        size * DTYPES[dtype].itemsize,
        tuple(seconds[1:]),
        int(_largest(traffic.sent)),
        traffic.calls,
        hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest(),
    )


def _weights(dtype: str, request: Request) -> dict[str, Tensor]:
    """Random weights, the same in all processes: each takes its own part of them."""
    generator = torch.Generator().manual_seed(0)
    shape = (request.side, request.side)
    return {
        f"layers.{place}.weight": torch.randn(shape, generator=generator).mul_(0.02 * (1 + place)).to(DTYPES[dtype])
        for place in range(request.layers)
    }


def _largest(value: float) -> float:
    tensor = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return float(tensor)
