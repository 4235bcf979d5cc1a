"""Many small tasks in order, shared out among threads."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

import torch

from lamplighter.errors import LamplighterError

T = TypeVar("T")

MOST = 8  # each takes some 15 MB for buffers, and disks gain little from more


class Stopped(Exception):  # noqa: N818  (no error of its own: another thread's stopped this one)
    """Another thread has failed: what waits for it need not wait any longer."""


class Workers(Generic[T]):
    """Threads that take tasks in order, each the next when it has done one.

    The first error stops all, and is raised where `run` was called.

    Args:
        threads: how many.
        work: what to do with a task.
    """

    def __init__(self, threads: int, work: Callable[[T], None]) -> None:
        self.threads = threads
        self.work = work
        self.stopped = threading.Event()
        self._errors: list[BaseException] = []
        self._lock = threading.Lock()

    def run(self, tasks: Iterable[T]) -> None:
        """Do all tasks."""
        queue, before = iter(tasks), torch.get_num_threads()
        hands = [threading.Thread(target=self._serve, args=(queue,), daemon=True) for _ in range(self.threads)]
        for hand in hands:
            hand.start()
        try:
            for hand in hands:
                hand.join()
        finally:  # also when the user interrupts
            self.stopped.set()
            for hand in hands:
                hand.join()
            torch.set_num_threads(before)  # what new threads start with
        if self._errors:
            raise self._errors[0]

    def _serve(self, queue: Iterator[T]) -> None:
        torch.set_num_threads(1)  # the cores are taken by our own threads
        try:
            while not self.stopped.is_set():
                with self._lock:
                    task = next(queue, None)
                if task is None:
                    return
                self.work(task)
        except BaseException as error:
            self.stopped.set()
            if not isinstance(error, Stopped):
                self._errors.append(error)


class Turnstile:
    """Something that the chunks of a layer use up in order, though they are worked on in any.

    Args:
        left: how much there is.
        stopped: set when nobody will come any more.
    """

    def __init__(self, left: int, stopped: threading.Event) -> None:
        self.left = left
        self._next = 0
        self._stopped = stopped
        self._turn = threading.Condition()

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left."""
        return self.left == 0

    def take(self, place: int, wanted: int) -> int:
        """What the chunk at this place gets of what it wants, once all before it have got theirs."""
        with self._turn:
            while self._next != place and self.left:
                if self._stopped.is_set():
                    raise Stopped
                self._turn.wait(0.1)
            taken = min(wanted, self.left)
            self.left -= taken
            self._next += 1
            self._turn.notify_all()
            return taken


def thread_count(asked: int | None, *, spread: bool = False) -> int:
    """How many threads to use: as many as are asked for, or as there are processors, up to a few.

    Where work is spread over a cluster, it is one for each task if none are asked for: tasks fill the processors.
    """
    if asked is not None and (isinstance(asked, bool) or not isinstance(asked, int) or asked < 1):
        raise LamplighterError(
            f"threads is {asked!r}, expected a whole number from 1 up", "leave it out for our choice"
        )
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return asked or (1 if spread else min(available, MOST))
