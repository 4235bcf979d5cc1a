"""Worlds of processes that talk by gloo: started once, and given one task after the other."""

import datetime
import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


class World:
    """Some processes, each a rank, that carry out functions together."""

    def __init__(self, size: int, folder: Path, longest: float) -> None:
        self.size = size
        context = multiprocessing.get_context("forkserver")
        # They import torch once for all.
        context.set_forkserver_preload(["worlds", "lamplighter.pruning", "torch.distributed.fsdp"])
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve, args=(rank, size, str(folder / "store"), longest, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Let every rank begin to compute `function(*arguments)`."""
        for pipe in self.pipes:
            pipe.send((function, arguments))

    def outcomes(self) -> list[Any]:
        """What came out in each rank: a result, or the text of an error."""
        found = []
        for pipe in self.pipes:
            try:
                found.append(pipe.recv())
            except EOFError:
                found.append((False, "the process has died"))
        return found

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What a function returns in every rank."""
        self.start(function, *arguments)
        found = self.outcomes()
        failed = [f"rank {rank}: {value}" for rank, (fine, value) in enumerate(found) if not fine]
        assert not failed, "\n".join(failed)
        return [value for _, value in found]

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()


def serve(rank: int, size: int, store: str, longest: float, tasks: Connection) -> None:
    """Carry out what is asked until nothing more is."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # of layers whose output a DTensor makes a view of
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    dist.init_process_group(
        "gloo",
        rank=rank,
        world_size=size,
        store=dist.FileStore(store, size),
        timeout=datetime.timedelta(seconds=longest),
    )
    while True:
        try:
            function, arguments = tasks.recv()
        except EOFError:
            break
        try:
            tasks.send((True, function(*arguments)))
        except BaseException:
            tasks.send((False, "\n".join(traceback.format_exc().splitlines()[-14:])))
    dist.destroy_process_group()


@contextmanager
def world_of(size: int, longest: float = 60) -> Iterator[World]:
    """A world that ends with the block; its processes wait so many seconds for each other."""
    with tempfile.TemporaryDirectory(prefix="dist_world_") as folder:
        world = World(size, Path(folder), longest)
        try:
            yield world
        finally:
            world.close()
