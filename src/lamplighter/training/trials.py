"""`fit_many`: several networks of one form trained at once on one device."""

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from lamplighter.data.dataset import Corpus, Dataset
from lamplighter.errors import LamplighterError
from lamplighter.naming import closest
from lamplighter.training import recording
from lamplighter.training.fit import Progress, fit
from lamplighter.training.fitted import Fitted, check
from lamplighter.training.numerics import numerics, seeded
from lamplighter.training.settings import Settings
from lamplighter.training.stack import Stack, stacks_well
from lamplighter.training.trial import Trial, trials

# Networks in one stack, at most.
_STACK = 15
METHODS = ("branches", "streams", "stacked")


def fit_many(
    models: Sequence[nn.Module],
    data: Dataset | Corpus,
    settings: Settings,
    masks: Sequence[Mapping[str, Tensor] | None],
    seeds: Sequence[int],
    *,
    method: Literal["branches", "streams", "stacked"] | None = None,
    progress: Progress | None = None,
) -> list[Fitted]:
    """Train each of `models` in place with its own masks and seed.

    Where `settings.graph` is off, as it must be on a CPU, the networks are trained one after another by `fit`, unless
    they are stacked. Otherwise their steps are recorded and replayed side by side:

    - "branches": one CUDA graph with a branch for each network;
    - "streams": a graph and a stream for each network;
    - "stacked": one network whose operations are batched over all of them (images only).

    By default that is "stacked" in bf16 where there are kernels for all layers, else "branches".

    Data order and augmentation are those that `fit` gives for the same seed. What dropout draws depends on how many
    networks train together.

    Args:
        models: networks of the same form, on one device; left in training mode.
        data: what they train on.
        settings: of this phase.
        masks: for each network, as `fit` takes them.
        seeds: for each network.
        method: how they are trained together; by default what is fastest.
        progress: called with the number of steps that each has done, now and then.

    Returns:
        For each network the loss of every step, and how long all took together.
    """
    if method not in (None, *METHODS):
        raise LamplighterError(f"method is {method!r}", closest(str(method), METHODS))
    if not len(models) == len(masks) == len(seeds):
        counts = f"{len(models)} models, {len(masks)} masks and {len(seeds)} seeds"
        raise LamplighterError(f"{counts} were given", "give one of each per trial; a mask may be None")
    device = next(models[0].parameters()).device
    if settings.graph and device.type != "cuda":
        raise LamplighterError(f"steps cannot be recorded on {device}", "leave out graph, or move the model to CUDA")
    if not settings.graph and method != "stacked":
        pairs = zip(models, masks, seeds, strict=True)
        return [fit(model, data, settings, own, seed=seed, progress=progress) for model, own, seed in pairs]
    if method is None:
        method = "stacked" if isinstance(data, Dataset) and stacks_well(models[0], settings) else "branches"
    began = time.perf_counter()
    with numerics(settings.precision, device), seeded(seeds[0], device):
        here = data.to(device)
        if method == "stacked":
            parts: Sequence[Trial | Stack] = [
                Stack(models[part], here, settings, masks[part], seeds[part]) for part in stacks(len(models))
            ]
        else:
            parts = trials(models, here, settings, masks, seeds)
        ready = _run(parts, settings, device, apart=method == "streams", progress=progress)
        losses = [found for part in parts for found in part.finish()]
    ended = time.perf_counter()
    for found in losses:
        check(found)
    return [Fitted(found, ended - ready, ready - began) for found in losses]


def stacks(count: int) -> list[slice]:
    """How so many networks are shared out among stacks that train side by side.

    >>> stacks(5), stacks(40)
    ([slice(0, 5, None)], [slice(0, 14, None), slice(14, 27, None), slice(27, 40, None)])
    """
    parts = -(-count // _STACK)
    ends = [-(-count * part // parts) for part in range(parts + 1)]
    return [slice(begin, end) for begin, end in pairwise(ends)]


def _run(
    parts: Sequence[Trial | Stack], settings: Settings, device: torch.device, *, apart: bool, progress: Progress | None
) -> float:
    """Make all steps of all parts; when the first of them began."""
    if not settings.graph:
        ready = time.perf_counter()
        for done in range(settings.steps):
            for part in parts:
                part.step()
            if progress is not None:
                progress(done + 1)
        return ready
    length = recording.recording_length(settings.steps)
    graphs: list[torch.cuda.CUDAGraph] = []
    with torch.cuda.device(device):
        if settings.steps:
            alone = [[part] for part in parts] if apart else [parts]
            graphs = [recording.record(together, length, device) for together in alone]
        ready = time.perf_counter()
        recording.replay(graphs, settings.steps // length, length, progress)
    return ready
