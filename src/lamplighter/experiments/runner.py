"""Carrying out a recipe: every missing round of every run, several networks side by side; what is finished stays."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from lamplighter.data.dataset import Dataset
from lamplighter.errors import LamplighterError
from lamplighter.experiments.provenance import describe, device_name
from lamplighter.experiments.recipes import Recipe
from lamplighter.experiments.records import Metric, Record
from lamplighter.experiments.spec import DENSE, Spec
from lamplighter.experiments.starting import STARTS, Place, initial, phase_seed
from lamplighter.experiments.store import Run, held, note_provenance, open_run
from lamplighter.masks import Masks
from lamplighter.targets import find_layers
from lamplighter.training.evaluate import evaluate
from lamplighter.training.fitted import Fitted
from lamplighter.training.settings import Settings
from lamplighter.training.trials import fit_many


@dataclass(frozen=True)
class Request:
    """Which runs of a recipe to carry out, and how far.

    Args:
        recipe: what the runs have in common.
        methods: the allocation methods.
        seeds: one run of each method for each.
        rounds: the rounds to make after the dense one.
        together: how many networks train side by side.
    """

    recipe: Recipe
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    rounds: tuple[int, ...]
    together: int = 5

    @property
    def dense(self) -> list[Spec]:
        """The runs of the dense networks."""
        if self.recipe.spec.plan in {"untrained", "profile"}:
            return []
        return [replace(self.recipe.spec, seed=seed).shared for seed in self.seeds]

    @property
    def pruned(self) -> list[Spec]:
        """The runs of the pruned networks."""
        spec = self.recipe.spec
        return [replace(spec, method=method, seed=seed) for seed in self.seeds for method in self.methods]


class Watch(Protocol):
    """Whoever follows the work."""

    def phase(self, title: str, steps: int) -> None:
        """A training begins."""

    def step(self, done: int) -> None:
        """So many of its steps are done."""

    def finished(self, run: Run, record: Record) -> None:
        """A round is finished and kept."""


def carry_out(request: Request, place: Place, watch: Watch, data_hash: str | None = None) -> list[Run]:
    """Make every requested round that is not finished; the runs, the dense ones first."""
    with ExitStack() as stack:
        dense = [open_run(place.root, spec) for spec in request.dense]
        pruned = [open_run(place.root, spec) for spec in request.pruned]
        for run in dense + pruned:
            stack.enter_context(held(run))
            note_provenance(run, describe(place.device, data_hash))
        workshop = Workshop(place, watch)
        for group in _groups((run for run in dense if not run.has(0)), request.together):
            workshop.train_dense(group)
        if request.recipe.spec.plan == "rewind":
            workshop.find_rewind_points(request.recipe.spec, dense)
        while waiting := _waiting(pruned, request.rounds):
            index = min(waiting)
            for group in _groups(waiting[index], request.together):
                workshop.make_round(group, index)
        return dense + pruned


def _waiting(runs: Sequence[Run], rounds: Sequence[int]) -> dict[int, list[Run]]:
    """The next unfinished round of every run that has one, and whose it is."""
    waiting: dict[int, list[Run]] = {}
    for run in runs:
        finished = {record.round for record in run.records}
        missing = [index for index in rounds if index not in finished]
        if missing:
            waiting.setdefault(min(missing), []).append(run)
    return waiting


def _groups(runs: Iterable[Run], size: int) -> list[list[Run]]:
    listed = list(runs)
    return [listed[start : start + size] for start in range(0, len(listed), size)]


@dataclass(frozen=True, eq=False)
class Training:
    """How a network was trained, and how many side by side."""

    fitted: Fitted
    together: int

    @property
    def last_loss(self) -> float:
        """The mean of the last hundred steps."""
        return float(self.fitted.losses[-100:].mean()) if self.fitted.steps else 0.0


@dataclass(frozen=True, eq=False)
class Workshop:
    """Where the rounds are made."""

    place: Place
    watch: Watch

    def train_dense(self, runs: Sequence[Run]) -> None:
        """Round 0: from the initial weights."""
        models = [initial(self.place, run.spec) for run in runs]
        seeds = [phase_seed(run.spec, 0) for run in runs]
        fitted = self._fit(models, runs[0].spec.dense, [None] * len(runs), seeds, f"dense, {_names(runs)}")
        for run, model, found in zip(runs, models, fitted, strict=True):
            self._finish(run, 0, model, None, Training(found, len(runs)))

    def find_rewind_points(self, spec: Spec, runs: Sequence[Run]) -> None:
        """The dense networks at the step to return to: the same first steps once more, from the same seed."""
        for run in runs:
            early = Run(run.spec, run.folder / "rewind")
            if early.state_path(spec.rewind_step).exists():
                continue
            early.folder.mkdir(exist_ok=True)
            model = initial(self.place, run.spec)
            settings = replace(spec.dense, steps=spec.rewind_step, drops=())
            self._fit([model], settings, [None], [phase_seed(run.spec, 0)], f"rewind point, seed {run.spec.seed}")
            early.keep(spec.rewind_step, model, None)

    def make_round(self, runs: Sequence[Run], index: int) -> None:
        """Prune and train the networks of several runs, which are all at the same round."""
        spec = runs[0].spec
        models, masks = zip(*(STARTS[spec.plan](self.place, run, index) for run in runs), strict=True)
        seeds = [phase_seed(run.spec, index) for run in runs]
        title = f"round {index}, {100 * spec.density(index):.3g} %, {_names(runs)}"
        fitted = self._fit(models, spec.retrain, masks, seeds, title)
        for run, model, kept, found in zip(runs, models, masks, fitted, strict=True):
            self._finish(run, index, model, kept, Training(found, len(runs)))

    def _fit(
        self,
        models: Sequence[nn.Module],
        settings: Settings,
        masks: Sequence[Masks | None],
        seeds: Sequence[int],
        title: str,
    ) -> list[Fitted]:
        self.watch.phase(title, settings.steps)
        if settings.steps == 0 or isinstance(self.place.data, Path):
            return [Fitted(torch.zeros(0), 0.0) for _ in models]
        cuda = self.place.device.type == "cuda"
        settings = replace(settings, compiled=cuda, graph=cuda)
        return fit_many(models, self.place.data, settings, masks, seeds, progress=self.watch.step)

    def _finish(self, run: Run, index: int, model: nn.Module, masks: Masks | None, training: Training) -> None:
        settings = run.spec.dense if index == 0 else run.spec.retrain
        layers = {layer.name: layer.weight.numel() for layer in find_layers(model, list(run.spec.include) or None)}
        budgets = layers if masks is None else masks.kept
        metric, value, loss = self._test(model, settings)
        record = Record(
            round=index,
            kept=sum(budgets.values()),
            total=sum(layers.values()),
            budgets=dict(budgets),
            sizes=layers,
            metric=metric,
            value=value,
            loss=loss,
            train_loss=training.last_loss,
            steps=training.fitted.steps,
            seconds=round(training.fitted.seconds, 3),
            together=training.together,
            device=device_name(self.place.device),
        )
        run.finish(record, model, masks)
        if masks is not None and run.spec.plan in {"iterative", "rewind"}:
            self.place.memory[run.folder] = (index, model, masks)
        self.watch.finished(run, record)

    def _test(self, model: nn.Module, settings: Settings) -> tuple[Metric, float, float]:
        """What is measured on the test data, its value, and the mean loss."""
        if isinstance(self.place.data, Path):
            return "none", 0.0, 0.0
        score = evaluate(model, self.place.data, precision=settings.precision, length=settings.length)
        if isinstance(self.place.data, Dataset):
            return "accuracy", score.accuracy, score.loss
        return "perplexity", score.perplexity, score.loss


def _names(runs: Sequence[Run]) -> str:
    methods = sorted({run.spec.method for run in runs} - {DENSE})
    seeds = sorted({run.spec.seed for run in runs})
    listed = ", ".join(map(str, seeds))
    return " ".join([*methods, f"seed {listed}" if len(seeds) == 1 else f"seeds {listed}"])


def check_request(request: Request) -> None:
    """Refuse what cannot be carried out before anything begins."""
    plan = request.recipe.spec.plan
    wanted = sorted(request.rounds)
    if not request.methods or not request.seeds or not wanted:
        raise LamplighterError("nothing to do: no method, no seed or no round is asked for")
    if wanted[0] < 1:
        raise LamplighterError(
            f"rounds are {wanted}, expected 1 or more", "round 0, the dense network, comes by itself"
        )
    if plan in {"iterative", "rewind"} and wanted != list(range(1, wanted[-1] + 1)):
        raise LamplighterError(
            f"{request.recipe.name} goes from round to round, so none can be left out", f"ask for {wanted[-1]} rounds"
        )
