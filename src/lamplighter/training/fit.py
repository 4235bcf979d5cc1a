"""`fit`: the one loop that trains a network, step by step, with its pruned weights held at zero."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from lamplighter.data.dataset import Corpus, Dataset
from lamplighter.errors import LamplighterError
from lamplighter.training.fitted import Fitted, check
from lamplighter.training.numerics import autocast, numerics, seeded
from lamplighter.training.pruned import find_pruned, zero_gradients, zero_weights
from lamplighter.training.settings import Settings, learning_rate
from lamplighter.training.tasks import task

Progress = Callable[[int], None]
Function = TypeVar("Function", bound=Callable[..., Tensor])


def fit(
    model: nn.Module,
    data: Dataset | Corpus,
    settings: Settings,
    masks: Mapping[str, Tensor] | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Fitted:
    """Train `model` in place for `settings.steps` steps on the device it is on.

    A new optimizer is made each time. Everything random follows from `seed`: on a CPU in fp32 the same call on the
    same weights ends in the same bits. Under `torchrun` each process takes its share of every batch of images, and
    gradients are averaged.

    Args:
        model: the network; left in training mode.
        data: images with labels, or text.
        settings: of this phase.
        masks: boolean tensors by parameter name, true where a weight is kept. The others, and their gradients, are
            exactly zero before and after every step.
        seed: of the order of the data, its augmentation, and dropout.
        progress: called with the number of steps done, now and then.

    Returns:
        The loss of every step, and how long they took.
    """
    if settings.graph:
        return _recorded(model, data, settings, masks, seed=seed, progress=progress)
    rank, world = _place()
    device = next(model.parameters()).device
    pruned = find_pruned(model, masks)
    began = time.perf_counter()
    with numerics(settings.precision, device), seeded(seed + rank, device):
        take, loss_of = task(model, data.to(device), settings, seed, rank=rank, world=world)
        loss_of = compiled(loss_of, settings)
        optimizer = make_optimizer(model.parameters(), settings)
        losses = torch.zeros(settings.steps, device=device)
        step = torch.zeros(1, dtype=torch.int64, device=device)
        network = model if world == 1 else nn.parallel.DistributedDataParallel(model)
        network.train()
        zero_weights(pruned)
        ready = time.perf_counter()
        for done in range(settings.steps):
            set_learning_rate(optimizer, learning_rate(settings, done))
            with autocast(settings.precision, device):
                loss = loss_of(network, take(step))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            zero_gradients(pruned)
            if settings.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimizer.step()
            zero_weights(pruned)
            losses[done] = loss.detach()
            step += 1
            if progress is not None:
                progress(done + 1)
        found = losses.cpu()
    check(found)
    return Fitted(found, time.perf_counter() - ready, ready - began)


def _recorded(
    model: nn.Module,
    data: Dataset | Corpus,
    settings: Settings,
    masks: Mapping[str, Tensor] | None,
    *,
    seed: int,
    progress: Progress | None,
) -> Fitted:
    _, world = _place()
    if world > 1:
        raise LamplighterError(f"steps cannot be recorded in {world} processes that train together", "turn graph off")
    from lamplighter.training.trials import fit_many  # noqa: PLC0415

    return fit_many([model], data, settings, [masks], [seed], progress=progress)[0]


def make_optimizer(parameters: Iterable[nn.Parameter], settings: Settings) -> Optimizer:
    """A new optimizer, with nothing accumulated."""
    if settings.optimizer == "sgd":
        return SGD(parameters, settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay)
    kind = AdamW if settings.optimizer == "adamw" else Adam
    return kind(parameters, settings.lr, weight_decay=settings.weight_decay)


def set_learning_rate(optimizer: Optimizer, value: float) -> None:
    """The same learning rate for every group."""
    for group in optimizer.param_groups:
        group["lr"] = value


def compiled(loss_of: Function, settings: Settings) -> Function:
    """The loss function, compiled if the settings say so."""
    if not settings.compiled:
        return loss_of
    mode = "max-autotune-no-cudagraphs" if settings.autotune else None
    return cast("Function", torch.compile(loss_of, mode=mode, dynamic=False))


def _place() -> tuple[int, int]:
    """This process's number and how many there are, if it is one of several."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()
