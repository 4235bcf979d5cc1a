"""How far a stage has come, in bytes, told to whoever wants to know."""

import threading
from collections.abc import Callable

Tell = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Tell nobody."""


class Meter:
    """Counts the bytes of a stage, by any number of threads.

    Args:
        stage: what it is called.
        tell: is told the stage, how many bytes are done, and how many there are to do as far as is known.
    """

    def __init__(self, stage: str, tell: Tell = silent) -> None:
        self.stage = stage
        self.tell = tell
        self.done = 0
        self.total = 0
        self._lock = threading.Lock()

    def expect(self, count: int) -> None:
        """So many bytes more are to be done."""
        with self._lock:
            self.total += count
            self.tell(self.stage, self.done, self.total)

    def step(self, count: int) -> None:
        """So many bytes more are done."""
        with self._lock:
            self.done += count
            self.tell(self.stage, self.done, self.total)
