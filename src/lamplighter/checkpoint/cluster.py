"""Tasks on a Ray cluster: handed out to its nodes, tried again where they are lost, ended with whatever ends this."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lamplighter.errors import LamplighterError
from lamplighter.optional import require
from lamplighter.version import __version__

if TYPE_CHECKING:
    import ray

RETRIES = 3  # how often a task is tried again after its process or node was lost
_AHEAD = 4  # so many tasks for each place where one can run are handed out at once
_PATIENCE = 10.0  # seconds in which a task may end of its own accord


class Task(Protocol):
    """What a node can do, and do again."""

    def carry_out(self) -> Any:  # noqa: ANN401
        """Do it."""


AnyTask = TypeVar("AnyTask", bound=Task)


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that this process is connected to.

    Args:
        threads: how many threads a task runs, each on a core of its own.
    """

    threads: int

    def run(self, tasks: Iterable[AnyTask], done: Callable[[AnyTask, Any], None]) -> None:
        """Have all tasks carried out, in any order; `done` is told of each, and of what it returned."""
        import ray  # noqa: PLC0415

        remote = ray.remote(num_cpus=self.threads, max_retries=RETRIES, scheduling_strategy="SPREAD")
        work = remote(_shipped())
        queue, at_once = iter(tasks), _AHEAD * max(self._places(), 1)
        running: dict[Any, tuple[AnyTask, Any]] = {}
        try:
            while True:
                for task in islice(queue, at_once - len(running)):
                    # By reference: what a task consists of is looked at only where this version is installed.
                    sent = ray.put(task)
                    name = f"lamp prune: {type(task).__name__.lower()}"
                    running[work.options(name=name).remote(__version__, [sent])] = task, sent
                if not running:
                    return
                for ref in ray.wait(list(running), num_returns=1)[0]:
                    task, _ = running.pop(ref)
                    done(task, _result(ref))
        finally:
            _cancel(list(running))

    def _places(self) -> int:
        """How many tasks can run at the same time."""
        return sum(int(cores) // self.threads for cores in _cores())


@contextmanager
def joined(address: str | None, threads: int) -> Iterator[Cluster | None]:
    """A connection to a Ray cluster, if there is an address.

    Args:
        address: "local" starts one on this machine, which ends with the connection; "auto" finds the one that this
            machine belongs to, or takes the connection that this process has; else host:port of its head.
        threads: how many threads a task runs.
    """
    if address is None:
        yield None
        return
    if not isinstance(address, str):
        raise LamplighterError(f"ray is {address!r}, expected auto, local or host:port", "for example ray='auto'")
    require("pruning on a cluster", "ray", "ray")
    from lamplighter.experiments.sweeps import connected  # noqa: PLC0415

    with nullcontext() if _is_connected(address) else connected(address):
        _check_cores(threads)
        yield Cluster(threads)


def _is_connected(address: str) -> bool:
    """Whether this process has joined the cluster already, which then is not for us to leave."""
    import ray  # noqa: PLC0415

    if not ray.is_initialized():
        return False
    return address in {"auto", ray.get_runtime_context().gcs_address}


def _check_cores(threads: int) -> None:
    """Refuse tasks that no node could ever take, for Ray would wait."""
    cores = _cores()
    if not any(each >= threads for each in cores):
        have = ", ".join(f"{each:g}" for each in cores) or "none"
        raise LamplighterError(f"no node of the cluster has {threads} CPUs for a task", f"its nodes have: {have}")


def _cores() -> list[float]:
    """How many cores each node offers."""
    import ray  # noqa: PLC0415

    list_nodes: Callable[[], list[dict[str, Any]]] = ray.nodes
    return [float(node["Resources"].get("CPU", 0)) for node in list_nodes() if node["Alive"]]


def _shipped() -> Callable[[str, list[Any]], Any]:
    """What runs on a node. Ray sends a function within a function as it is, whatever is installed there.

    Where it is another version, or none, the answer is a text that says so.
    """

    def carry_out(version: str, sent: list[Any]) -> Any:  # noqa: ANN401
        import socket  # noqa: PLC0415

        try:
            from lamplighter.version import __version__ as here  # noqa: PLC0415
        except ImportError as error:
            return f"node {socket.gethostname()} cannot import lamplighter: {error}"
        if here != version:
            return f"node {socket.gethostname()} has lamplighter {here}, but here it is {version}"
        import ray  # noqa: PLC0415

        return ray.get(sent[0]).carry_out()

    return carry_out


def _result(ref: "ray.ObjectRef[Any]") -> Any:  # noqa: ANN401
    """What a task returned; or what ended it, as it would be raised here."""
    import ray  # noqa: PLC0415
    from ray.exceptions import RayError, RayTaskError  # noqa: PLC0415

    try:
        found = ray.get(ref)
    except RayTaskError as error:
        cause = error.cause
        if not isinstance(cause, LamplighterError):
            first = str(cause).partition("\n")[0]
            raise LamplighterError(f"a task on the cluster failed: {type(cause).__name__}: {first}") from error
        raise LamplighterError(cause.message, cause.hint) from error
    except RayError as error:
        first = str(error).partition("\n")[0]
        hint = "see what ends processes or nodes of the cluster (memory?), and start again"
        raise LamplighterError(f"a task was lost, and {RETRIES} retries: {first}", hint) from error
    if isinstance(found, str):
        raise LamplighterError(found, "install the same version on all nodes")
    return found


def _cancel(refs: "list[ray.ObjectRef[Any]]") -> None:
    """End tasks, and wait until they have ended: nobody is to write any more where things are cleared away."""
    import ray  # noqa: PLC0415

    def unfinished(left: "list[ray.ObjectRef[Any]]", seconds: float) -> "list[ray.ObjectRef[Any]]":
        return ray.wait(left, num_returns=len(left), timeout=seconds, fetch_local=False)[1] if left else []

    # Not those that have ended: Ray aborts the process if a task is cancelled while it notes its end.
    left = unfinished(refs, 0)
    for force in (False, True):
        for ref in left:
            ray.cancel(ref, force=force)
        left = unfinished(left, _PATIENCE)
