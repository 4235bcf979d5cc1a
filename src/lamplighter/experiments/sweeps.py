"""A recipe's runs on a Ray cluster: one task for each run, on storage that all nodes share.

A task is `carry_out` of a request for one run, so what holds for the local runner holds here: a task that is lost with
its node and tried again elsewhere goes on from the last whole round. Ray moves requests, but no data and no networks:
these are in shared folders, and from there progress is read.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lamplighter.data.catalog import PREPARED
from lamplighter.errors import LamplighterError
from lamplighter.experiments.records import Record
from lamplighter.experiments.runner import Request, Watch, carry_out
from lamplighter.experiments.sources import open_data
from lamplighter.experiments.spec import DENSE, Spec
from lamplighter.experiments.starting import Place
from lamplighter.experiments.store import Run, held, open_run
from lamplighter.optional import require

if TYPE_CHECKING:
    import ray

# How long to wait for what another node does: let go of a run that it is losing (NFS takes 90 s to give up on a node
# that is gone), or show a file that it wrote (NFS may hide it for 60 s).
PATIENCE = 180.0


@dataclass(frozen=True)
class Pruning(Request):
    """A request that finds its dense networks made, and leaves their runs to whoever else starts from them."""

    @property
    def dense(self) -> list[Spec]:
        """None."""
        return []


@dataclass(frozen=True)
class Task:
    """One run, to be carried out by one process.

    Args:
        request: what `carry_out` is asked for.
        spec: of the run.
        after: the run of the dense network that has to be finished first.
    """

    request: Request
    spec: Spec
    after: Spec | None = None

    @property
    def name(self) -> str:
        """The run's folder, below the folder of all runs."""
        return f"{self.spec.recipe}/{self.spec.id}"

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds that it makes."""
        return (0,) if self.spec.method == DENSE else self.request.rounds

    def finished(self, root: Path) -> list[Record]:
        """Those of its rounds that are on disk."""
        return [record for record in open_run(root, self.spec).records if record.round in self.rounds]

    def is_finished(self, root: Path) -> bool:
        """Whether nothing is left to do."""
        decided = self.request.recipe.spec
        if self.spec.method == DENSE and decided.plan == "rewind":
            early = Run(self.spec, open_run(root, self.spec).folder / "rewind")
            if not early.state_path(decided.rewind_step).exists():
                return False
        return len(self.finished(root)) == len(self.rounds)


def split(request: Request) -> list[Task]:
    """A task for each run of a request: the dense network of each seed, then each method of each seed."""
    recipe = request.recipe
    after = {spec.seed: spec for spec in request.dense}
    dense = [Task(Request(recipe, (), (seed,), (), together=1), spec) for seed, spec in after.items()]
    return dense + [
        Task(Pruning(recipe, (spec.method,), (spec.seed,), request.rounds, together=1), spec, after.get(spec.seed))
        for spec in request.pruned
    ]


def find_ready(waiting: Sequence[Task], running: Sequence[Task]) -> list[Task]:
    """The waiting tasks whose dense network is neither waited for nor being made."""
    unfinished = {task.spec.id for task in (*waiting, *running)}
    return [task for task in waiting if task.after is None or task.after.id not in unfinished]


def finished_rounds(request: Request, root: Path) -> int:
    """How many of the rounds of a request, the dense ones included, are on disk."""
    return sum(len(task.finished(root)) for task in split(request))


@dataclass(frozen=True)
class Site:
    """Where every node finds what all share.

    Args:
        root: the folder of all runs, an absolute path.
        data: the folder of the prepared dataset or, for a network that comes trained, its file; an absolute path.
        patience: seconds to wait for what another node does.
    """

    root: Path
    data: Path
    patience: float = PATIENCE


def find_site(spec: Spec, given: Path | None, root: Path) -> Site:
    """Where the nodes find the runs and the data, which are prepared here if they were not.

    Args:
        spec: names the dataset.
        given: as `open_data` takes it.
        root: the folder of all runs.
    """
    data, _ = open_data(spec, given)
    if isinstance(data, Path):
        return Site(root.resolve(), data.resolve())
    folder = given if given is not None and (given / f"{spec.dataset}.safetensors").is_file() else PREPARED
    return Site(root.resolve(), folder.resolve())


@dataclass(frozen=True)
class Demand:
    """What a task takes of its node.

    Args:
        cpus: cores, and as many threads.
        gpus: GPUs; 0.25 lets four tasks share one. None is one if the cluster has any, else none.
        retries: how often a task is tried again after its process or node was lost.
    """

    cpus: float = 1.0
    gpus: float | None = None
    retries: int = 3


@contextmanager
def connected(address: str) -> Iterator[None]:
    """A connection to a Ray cluster.

    Args:
        address: "local" starts one on this machine, which ends with the connection; "auto" finds the one that this
            machine belongs to; else host:port of its head.
    """
    require("a sweep on a cluster", "ray", "ray")
    import ray  # noqa: PLC0415

    # Workers' output stays in Ray's log: standard output is for data.
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == "local":
            options["include_dashboard"] = False
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unless the user says so
        elif address != "auto":
            _check_port(address)
        ray.init(address, **options)
    except (OSError, RuntimeError, ValueError) as error:
        first = str(error).partition("\n")[0]
        hint = "ray start --head begins one; --ray local starts one for this command alone"
        raise LamplighterError(f"cannot connect to a Ray cluster at {address}: {first}", hint) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_port(address: str) -> None:
    """Refuse an address where nobody listens; Ray itself would try for minutes and then end the process."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("expected auto, local or host:port")
    socket.create_connection((host, int(port)), timeout=10).close()


def sweep(request: Request, site: Site, demand: Demand, watch: Watch, poll: float = 1.0) -> list[Run]:
    """Make every requested round that is not finished on the connected cluster; the runs, the dense ones first.

    Args:
        request: which runs, and how far; every run is a task of its own, whatever `together` says.
        site: where the nodes find what all share.
        demand: what a task takes of its node.
        watch: told of every round that appears in the shared folder; its steps are tasks.
        poll: seconds between two looks at the shared folder.
    """
    demand = _check_demand(demand)
    tasks = split(request)
    view = _View(tasks, site.root, watch)
    _work_off([task for task in tasks if not task.is_finished(site.root)], site, demand, view, poll)
    if not _until(view.look, site.patience):
        raise LamplighterError(f"all tasks ended, but not all of their rounds are in {site.root}", _SHARE)
    return [open_run(site.root, task.spec) for task in tasks]


_SHARE = "every node has to find the same folder under this path"


def _check_demand(demand: Demand) -> Demand:
    """The demand with its GPUs decided; refused if no node could ever meet it, for Ray would wait."""
    import ray  # noqa: PLC0415

    list_nodes: Callable[[], list[dict[str, Any]]] = ray.nodes
    nodes = [node["Resources"] for node in list_nodes() if node["Alive"]]
    gpus = demand.gpus if demand.gpus is not None else float(any(node.get("GPU", 0) for node in nodes))
    if gpus > 1 and gpus != int(gpus):
        raise LamplighterError(f"a task is to take {gpus:g} GPUs, expected a whole number or a part of one")
    if not any(node.get("CPU", 0) >= demand.cpus and node.get("GPU", 0) >= gpus for node in nodes):
        have = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes)
        wanted = f"{demand.cpus:g} CPUs and {gpus:g} GPUs"
        raise LamplighterError(f"no node of the cluster has {wanted} for a task", f"its nodes have: {have}")
    return replace(demand, gpus=gpus)


class _View:
    """Tells a watch of every round that the shared folder gained."""

    def __init__(self, tasks: Sequence[Task], root: Path, watch: Watch) -> None:
        self.watch = watch
        self.root = root
        self.missing = [(task, set(task.rounds) - {record.round for record in task.finished(root)}) for task in tasks]

    def look(self) -> bool:
        """Pass on what is new; whether every round is there."""
        for task, missing in self.missing:
            for record in task.finished(self.root) if missing else []:
                if record.round in missing:
                    missing.remove(record.round)
                    self.watch.finished(open_run(self.root, task.spec), record)
        return not any(missing for _, missing in self.missing)


def _work_off(waiting: list[Task], site: Site, demand: Demand, view: _View, poll: float) -> None:
    """Start every task as soon as its dense network is there; whatever ends this ends the tasks."""
    import ray  # noqa: PLC0415

    work = ray.remote(num_cpus=demand.cpus, num_gpus=demand.gpus or 0, max_retries=demand.retries)(_work)
    running: dict[ray.ObjectRef[None], Task] = {}
    total = len(waiting)
    view.watch.phase("of the sweep", total)
    try:
        while waiting or running:
            ready = find_ready(waiting, list(running.values()))
            waiting = [task for task in waiting if task not in ready]
            running |= {work.options(name=task.name).remote(task, site, demand): task for task in ready}
            ended, _ = ray.wait(list(running), num_returns=1, timeout=poll)
            results = [(ref, running.pop(ref)) for ref in ended]
            view.look()
            for ref, task in results:
                _check_result(ref, task, demand)
            view.watch.step(total - len(waiting) - len(running))
    finally:
        # Not those that have ended: Ray aborts the process if a task is cancelled while it notes its end.
        left = ray.wait(list(running), num_returns=len(running), timeout=0)[1] if running else []
        for ref in left:
            ray.cancel(ref, force=True)


def _check_result(ref: "ray.ObjectRef[None]", task: Task, demand: Demand) -> None:
    """Raise what ended a task, with the name of its run."""
    import ray  # noqa: PLC0415
    from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415

    try:
        ray.get(ref)
    except RayTaskError as error:
        cause = error.cause
        if not isinstance(cause, LamplighterError):
            cause = LamplighterError(f"{type(cause).__name__}: {cause}")
        raise LamplighterError(f"{task.name}: {cause.message}", cause.hint) from error
    except RayError as error:
        first = str(error).partition("\n")[0]
        hint = "start the sweep again: it goes on from the last whole rounds"
        raise LamplighterError(f"{task.name} was lost, and {demand.retries} retries: {first}", hint) from error


def _work(task: Task, site: Site, demand: Demand) -> None:
    """Carry out a task, in a process of its own on some node."""
    torch.set_num_threads(max(1, int(demand.cpus)))
    device = torch.device("cuda" if demand.gpus else "cpu")
    _wait_for_others(task, site)
    data, data_hash = open_data(task.request.recipe.spec, site.data)
    place = Place(site.root, data if isinstance(data, Path) else data.to(device), device)
    carry_out(task.request, place, _Unwatched(), data_hash)


def _wait_for_others(task: Task, site: Site) -> None:
    """Wait until the dense network can be seen from here, and until a process that is being lost lets go of the run."""
    dense = None if task.after is None else open_run(site.root, task.after)
    if dense is not None and not _until(lambda: dense.has(0), site.patience):
        raise LamplighterError(f"the dense network it starts from is not in {dense.folder}", _SHARE)
    run = open_run(site.root, task.spec)
    if not _until(lambda: _is_free(run), site.patience):
        message = f"another process has been working on it for {site.patience:g} s"
        raise LamplighterError(message, "end that process, or wait for it")


def _is_free(run: Run) -> bool:
    try:
        with held(run):
            return True
    except LamplighterError:
        return False


def _until(met: Callable[[], bool], patience: float) -> bool:
    """Whether a condition is met within so many seconds."""
    deadline = time.monotonic() + patience
    while not met():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


class _Unwatched:
    """Nobody follows a task itself: the shared folder tells what it finished."""

    def phase(self, title: str, steps: int) -> None: ...
    def step(self, done: int) -> None: ...
    def finished(self, run: Run, record: Record) -> None: ...
