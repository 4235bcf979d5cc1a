"""What the training of a round starts from: a network, pruned, and its masks; one function for each plan."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from lamplighter.data.dataset import Corpus, Dataset
from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.evidence import gradients
from lamplighter.experiments.spec import Plan, Spec
from lamplighter.experiments.store import Run, open_run
from lamplighter.masks import Masks
from lamplighter.models import MODELS
from lamplighter.pruning import prune
from lamplighter.training.rewinding import restore, snapshot
from lamplighter.training.tasks import image_batch, image_step, image_tables

Data = Dataset | Corpus | Path
REWIND_POINT = "rewind.safetensors"


@dataclass(frozen=True, eq=False)
class Place:
    """Where runs are carried out.

    Args:
        root: the folder of all runs.
        data: the dataset, or for a network that comes trained the file of its weights.
        device: where networks train.
        memory: networks whose next round may follow, with the round they come from and their masks, by their run's
            folder: the same that `Run.load` would read, to the bit.
    """

    root: Path
    data: Data
    device: torch.device
    memory: dict[Path, tuple[int, nn.Module, Masks]] = field(default_factory=dict)


Start = Callable[[Place, Run, int], tuple[nn.Module, Masks]]


def phase_seed(spec: Spec, index: int) -> int:
    """The seed of the data's order and augmentation in a round: the same for all methods."""
    return 1000 * spec.seed + index


def initial(place: Place, spec: Spec) -> nn.Module:
    """The untrained network of a seed. Weights are drawn on the CPU, so that a seed means the same everywhere."""
    if isinstance(place.data, Path):
        classes = 1000
    else:
        classes = len(place.data.words) if isinstance(place.data, Corpus) else place.data.classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        model: nn.Module = MODELS[spec.model](classes, **spec.options)
    return model.to(place.device)


def dense(place: Place, spec: Spec) -> nn.Module:
    """The trained dense network that a run starts from."""
    model = initial(place, spec)
    open_run(place.root, spec.shared).load(0, model)
    return model


def _iterative(place: Place, run: Run, index: int) -> tuple[nn.Module, Masks]:
    """Prune what the last round left."""
    if index == 1:
        return _one_shot(place, run, index)
    known = place.memory.pop(run.folder, None)
    if known is not None and known[0] == index - 1:
        _, model, masks = known
        return model, _prune(model, run.spec, index, masks)
    model = initial(place, run.spec)
    return model, _prune(model, run.spec, index, run.load(index - 1, model))


def _one_shot(place: Place, run: Run, index: int) -> tuple[nn.Module, Masks]:
    """Prune the dense network."""
    model = dense(place, run.spec)
    return model, _prune(model, run.spec, index)


def _rewind(place: Place, run: Run, index: int) -> tuple[nn.Module, Masks]:
    """Prune what the last round left; every parameter and buffer returns to the rewind point, then the mask applies."""
    model, masks = _iterative(place, run, index)
    early = initial(place, run.spec)
    shared = open_run(place.root, run.spec.shared)
    Run(shared.spec, shared.folder / "rewind").load(run.spec.rewind_step, early)
    restore(model, snapshot(early))
    return model, masks.apply(model)


def _untrained(place: Place, run: Run, index: int) -> tuple[nn.Module, Masks]:
    """Prune the untrained network, by a score that looks at the first batch."""
    model = initial(place, run.spec)
    if not isinstance(place.data, Dataset):
        raise LamplighterError(f"{run.spec.recipe} prunes by gradients of images, and its data are not images")
    tables = image_tables(place.data.to(place.device), run.spec.retrain, phase_seed(run.spec, 0))
    first = image_batch(image_step(tables, torch.zeros(1, dtype=torch.int64, device=place.device)))
    evidence = gradients(model, [first], F.cross_entropy, include=list(run.spec.include) or None)
    return model, _prune(model, run.spec, index, evidence=evidence)


def _profile(place: Place, run: Run, index: int) -> tuple[nn.Module, Masks]:
    """Prune a network that comes trained."""
    from safetensors.torch import load_file  # noqa: PLC0415

    model = initial(place, run.spec)
    assert isinstance(place.data, Path)
    try:
        model.load_state_dict(load_file(place.data))
    except (OSError, RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise LamplighterError(f"{place.data} does not hold the weights of {run.spec.model}: {first}") from error
    return model, _prune(model, run.spec, index)


STARTS: dict[Plan, Start] = {
    "iterative": _iterative,
    "one-shot": _one_shot,
    "rewind": _rewind,
    "untrained": _untrained,
    "profile": _profile,
}


def _prune(model: nn.Module, spec: Spec, index: int, masks: Masks | None = None, evidence: object = None) -> Masks:
    include = list(spec.include) or None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LamplighterWarning)  # that global empties layers is a result, and recorded
        return prune(
            model, 1 - spec.density(index), spec.method, spec.score, evidence=evidence, masks=masks, include=include
        )
