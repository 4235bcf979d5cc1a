"""The demonstration: a small network on scikit-learn's digits, pruned round by round in several ways."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.pruning import allocate
from lamplighter.schedules import geometric
from lamplighter.training.rounds import rounds

METHODS = ("lamp", "global", "uniform", "erk")
TEST_IMAGES = 500
SCHEDULE = geometric(0.2)


@dataclass(frozen=True)
class Setting:
    """Everything a demonstration depends on. All methods share it; nothing was tuned to favour one.

    Args:
        methods: allocation methods to compare.
        seed: the first trial's seed; each trial has a split, initial weights and an order of batches of its own.
        trials: how many networks are trained; results are averaged over them.
        rounds: each removes 20 % of the weights still alive: 21 rounds leave 0.8^21 = 0.92 %.
        dense_steps: optimizer steps before the first pruning (40 are one pass over the training images).
        round_steps: optimizer steps after each pruning.
        batch: images a step; the last, incomplete batch of a pass is dropped.
        learning_rate: of AdamW, made anew in each round.
    """

    methods: tuple[str, ...] = METHODS
    seed: int = 0
    trials: int = 3
    rounds: int = 21
    dense_steps: int = 600
    round_steps: int = 80
    batch: int = 32
    learning_rate: float = 3e-3

    @property
    def steps(self) -> dict[str, int]:
        """Optimizer steps of the whole demonstration, by phase: `dense`, then each method."""
        pruned = dict.fromkeys(self.methods, self.trials * self.rounds * self.round_steps)
        return {"dense": self.trials * self.dense_steps, **pruned}


@dataclass(frozen=True)
class Point:
    """What one training phase ended with. Round 0 is the dense network, which the methods share."""

    trial: int
    method: str
    round: int
    density: float
    accuracy: float
    steps: int
    layers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Digits:
    """1797 images of 8x8 pixels, as whole tensors: there is nothing to load while training."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_digits(seed: int) -> Digits:
    """The digits that come with scikit-learn, shuffled, split and standardised by the training part."""
    from sklearn import datasets  # noqa: PLC0415

    pixels, digits = datasets.load_digits(return_X_y=True)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed))
    images = torch.from_numpy(pixels).float().view(-1, 1, 8, 8)[order]
    labels = torch.from_numpy(digits).long()[order]
    train = images[TEST_IMAGES:]
    images = (images - train.mean()) / train.std()
    return Digits(images[TEST_IMAGES:], labels[TEST_IMAGES:], images[:TEST_IMAGES], labels[:TEST_IMAGES])


def network() -> nn.Sequential:
    """Three convolutions with batch norm and a linear layer: 25,744 weights that count."""
    return nn.Sequential(
        *_block(1, 16, stride=1), *_block(16, 32, stride=2), *_block(32, 64, stride=2), nn.Flatten(), nn.Linear(256, 10)
    )


def _block(n_in: int, n_out: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()


def layer_titles() -> tuple[str, ...]:
    """What the layers of `network` are called in figures, in order."""
    return ("conv 1", "conv 2", "conv 3", "linear")


def measure(setting: Setting) -> Iterator[Point]:
    """Run the demonstration, one `Point` after each training phase.

    The dense network of each trial is trained once and copied for every method. Then, round by round: prune 20 % of
    what is alive, train on from there, read the accuracy on the test images.
    """
    check_methods(setting)
    with _one_thread():
        trained = []
        for trial in range(setting.trials):
            trained.append(_dense(setting, trial))
            yield Point(trial, "dense", 0, 1.0, accuracy(*trained[trial]), setting.dense_steps)
        for method in setting.methods:
            for trial, (dense, data) in enumerate(trained):
                yield from _prune_by_rounds(copy.deepcopy(dense), data, method, setting, trial)


def check_methods(setting: Setting) -> None:
    """Let every method allocate for the first and the last pruning, so that what is wrong is told before any training.

    A method of the user's own may raise anything: that is an error too, which says whose it is.
    """
    for method in setting.methods:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LamplighterWarning)  # that a method empties layers is what figures show
                for index in (1, setting.rounds):
                    allocate(_seeded_network(0), SCHEDULE(index), method)
        except LamplighterError as error:
            named = error.message if repr(method) in error.message else f"method {method!r}: {error.message}"
            raise LamplighterError(named, error.hint) from error
        except Exception as error:
            raise LamplighterError(
                f"method {method!r} raises {error!r}",
                "a method takes (spectra, shapes, keep) and returns {layer: how many weights it keeps}",
            ) from error


def _dense(setting: Setting, trial: int) -> tuple[nn.Module, Digits]:
    seed = setting.seed + trial
    data = load_digits(seed)
    model = _seeded_network(seed)
    train(model, data, _optimizer(model, setting), steps=setting.dense_steps, batch=setting.batch, order=_order(seed))
    return model, data


def _seeded_network(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # the caller's generator goes on as if nothing had happened
        torch.manual_seed(seed)
        return network()


def _prune_by_rounds(model: nn.Module, data: Digits, method: str, setting: Setting, trial: int) -> Iterator[Point]:
    order = _order(setting.seed + trial + 1_000_000)  # the same for every method
    for current in rounds(model, schedule=SCHEDULE, count=setting.rounds, method=method):
        if current.index == 0:
            continue  # the dense phase: that network comes trained
        optimizer = _optimizer(model, setting)
        current.masks.hold(optimizer)
        train(model, data, optimizer, steps=setting.round_steps, batch=setting.batch, order=order)
        density, layers = current.masks.density, current.masks.densities()
        yield Point(trial, method, current.index, density, accuracy(model, data), setting.round_steps, layers)


def train(
    model: nn.Module, data: Digits, optimizer: torch.optim.Optimizer, *, steps: int, batch: int, order: torch.Generator
) -> None:
    """`steps` optimizer steps of cross-entropy, passing over the images in a new order each time."""
    if batch > len(data.images):
        raise LamplighterError(
            f"a batch of {batch} images was asked for, there are {len(data.images)}", "ask for a smaller batch"
        )
    model.train()
    batches: list[Tensor] = []
    for _ in range(steps):
        if not batches:
            shuffled = torch.randperm(len(data.images), generator=order)
            batches = [part for part in torch.split(shuffled, batch) if len(part) == batch]
        chosen = batches.pop()
        loss = F.cross_entropy(model(data.images[chosen]), data.labels[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, data: Digits) -> float:
    """The fraction of test images classified correctly, read after the last step."""
    model.eval()
    right = model(data.test_images).argmax(dim=1) == data.test_labels
    return float(right.float().mean())


def _optimizer(model: nn.Module, setting: Setting) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=setting.learning_rate, fused=True)


def _order(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Operators this small gain nothing from a second thread, and wait for it when the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
