"""Steps recorded as a CUDA graph and replayed: all that is known of capture is in this file.

Every tensor that a recorded kernel touches stays where it was, so whatever is recorded here must keep its tensors; the
graph itself keeps what was allocated while it was recorded.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

# Steps in one recording, at most: enough that starting a replay costs nothing beside it.
_LONGEST = 10
# Steps made before recording: kernels are compiled and chosen in these, and must not be while recording.
_WARMUP = 3
# Steps between reports of progress, roughly; the host waits for the device at each.
_REPORT = 500


class Steps(Protocol):
    """Something that makes steps out of static tensors."""

    def step(self) -> None: ...

    def reset(self) -> None: ...


def recording_length(steps: int) -> int:
    """The largest divisor of `steps` that a recording may have, so that replays make exactly `steps` steps.

    >>> [recording_length(steps) for steps in (2000, 7, 14, 0)]
    [10, 7, 7, 1]
    """
    return max((n for n in range(1, _LONGEST + 1) if steps and steps % n == 0), default=1)


def record(parts: Sequence[Steps], length: int, device: torch.device) -> torch.cuda.CUDAGraph:
    """One graph in which each part makes `length` steps on a branch of its own.

    The branches have nothing in common, so the device runs them side by side as far as it has room.
    """
    trunk = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    branches = [torch.cuda.Stream(device) for _ in parts]  # type: ignore[no-untyped-call]
    trunk.wait_stream(torch.cuda.current_stream(device))
    for part, branch in zip(parts, branches, strict=True):
        branch.wait_stream(trunk)
        with torch.cuda.stream(branch):
            for _ in range(_WARMUP):
                part.step()
                part.reset()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    # Only this thread is kept from calls that cannot be recorded; a compiler's threads may be busy with their own.
    with torch.cuda.graph(graph, stream=trunk, capture_error_mode="thread_local"):
        for part, branch in zip(parts, branches, strict=True):
            branch.wait_stream(trunk)
            with torch.cuda.stream(branch):
                for _ in range(length):
                    part.step()
        for branch in branches:
            trunk.wait_stream(branch)
    torch.cuda.synchronize(device)
    return graph


def replay(
    graphs: Sequence[torch.cuda.CUDAGraph], times: int, length: int, progress: Callable[[int], None] | None
) -> None:
    """Replay every graph `times` times, each on a stream of its own, and wait for them.

    Args:
        graphs: independent of each other.
        times: replays of each.
        length: steps in one replay.
        progress: called with the number of steps done, now and then.
    """
    streams = [torch.cuda.Stream() for _ in graphs]  # type: ignore[no-untyped-call]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    often = max(1, _REPORT // length)
    for done in range(1, times + 1):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        if done % often == 0 or done == times:
            for stream in streams:
                stream.synchronize()
            if progress is not None:
                progress(done * length)
