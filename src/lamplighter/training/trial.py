"""A training run on a working copy of the network, whose every tensor is static, so that a step can be recorded.

The network itself is read at the beginning and written at the end. In between the copy computes with the leaves of
flat parameters (see `flat`), and one step is `Trial.step`, which takes nothing from the host.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

import torch
from torch import Tensor, nn

from lamplighter.data.dataset import Corpus, Dataset
from lamplighter.training import update as plain_update
from lamplighter.training.fit import compiled
from lamplighter.training.flat import Flat, lay_out
from lamplighter.training.numerics import autocast
from lamplighter.training.pruned import kept_entries
from lamplighter.training.settings import Settings
from lamplighter.training.tasks import task

# Layers that autocast runs in bf16: their weights and biases are kept in it.
HALVED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def owners(model: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """For each parameter by its name, every module that has it, and as what: several, where weights are tied."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[str, list[tuple[nn.Module, str]]] = {name: [] for name in names.values()}
    for module in model.modules():
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            found[names[id(parameter)]].append((module, attribute))
    return found


def halved_names(model: nn.Module) -> set[str]:
    """The parameters that only layers which autocast runs in bf16 use."""
    return {name for name, users in owners(model).items() if all(isinstance(module, HALVED) for module, _ in users)}


def groups(model: nn.Module, precision: str) -> list[tuple[torch.dtype, list[str]]]:
    """The parameters by the dtype they are computed with."""
    halved = halved_names(model) if precision == "bf16" else set()
    names = [name for name, _ in model.named_parameters()]
    parts = [
        (torch.bfloat16, [name for name in names if name in halved]),
        (torch.float32, [name for name in names if name not in halved]),
    ]
    return [(dtype, chosen) for dtype, chosen in parts if chosen]


def update_module(device: torch.device) -> ModuleType:
    """The module whose updates suit the device."""
    if device.type != "cuda":
        return plain_update
    from lamplighter.training import update_triton  # noqa: PLC0415

    return update_triton


def shared_out(
    gradients: Sequence[Tensor | None], flats: Sequence[Flat]
) -> Iterator[tuple[Flat, Sequence[Tensor | None]]]:
    """Each of the flat parameters with the gradients that are its own."""
    begin = 0
    for flat in flats:
        yield flat, gradients[begin : (begin := begin + len(flat.shapes))]


class Trial:
    """One network in training.

    Args:
        model: the network, on the device where it will be trained; unchanged until `finish`.
        data: what to train on, on the same device.
        settings: of the phase.
        masks: as `fit` takes them.
        seed: of the data's order and augmentation.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Dataset | Corpus,
        settings: Settings,
        masks: Mapping[str, Tensor] | None,
        seed: int,
    ) -> None:
        self.model = model
        self.settings = settings
        self.device = next(model.parameters()).device
        kept = kept_entries(model, masks)
        parameters = dict(model.named_parameters())
        self._take, loss_of = task(model, data, settings, seed)
        self._loss_of = compiled(loss_of, settings)
        self._copy = copy.deepcopy(model).train()
        self._names: list[list[str]] = []
        self._flats: list[Flat] = []
        self._leaves: list[nn.Parameter] = []
        users = owners(self._copy)
        for dtype, names in groups(model, settings.precision):
            flat = lay_out([parameters[name].detach() for name in names], [kept.get(name) for name in names], dtype)
            for name, place in zip(names, flat.views(flat.working), strict=True):
                leaf = nn.Parameter(place)
                self._leaves.append(leaf)
                for module, attribute in users[name]:
                    setattr(module, attribute, leaf)
            self._names.append(names)
            self._flats.append(flat)
        self._rule = plain_update.rule(settings)
        self._rows = plain_update.table(settings, self.device)
        self._rules = update_module(self.device)
        self._whole = torch.ones(1, device=self.device)
        self._step = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._losses = torch.zeros(settings.steps, device=self.device)

    def step(self) -> None:
        """One step. Nothing here depends on values that the host would have to know."""
        with autocast(self.settings.precision, self.device):
            loss = self._loss_of(self._copy, self._take(self._step))
        gradients = torch.autograd.grad(loss, self._leaves, allow_unused=True)
        each = list(shared_out(gradients, self._flats))
        if self.settings.clip is None:
            for flat, own in each:
                self._rules.update_from(flat, own, self._rule, self._rows, self._step, self._whole)
        else:
            for flat, own in each:
                flat.take(own)
            scale = plain_update.clipping(self._flats, self.settings.clip)
            for flat in self._flats:
                self._rules.update(flat, self._rule, self._rows, self._step, scale)
        self._losses.index_copy_(0, self._step, loss.detach().view(1))
        self._step += 1

    @torch.no_grad()
    def reset(self) -> None:
        """Back to before the first step."""
        parameters = dict(self.model.named_parameters())
        for flat, names in zip(self._flats, self._names, strict=True):
            flat.load([parameters[name] for name in names])
        for mine, original in zip(self._copy.buffers(), self.model.buffers(), strict=True):
            mine.copy_(original)
        self._step.zero_()

    @torch.no_grad()
    def finish(self) -> list[Tensor]:
        """Write what has been trained into the network; the losses of every step, once for each network."""
        parameters = dict(self.model.named_parameters())
        for flat, names in zip(self._flats, self._names, strict=True):
            for name, value in zip(names, flat.views(flat.master), strict=True):
                parameters[name].copy_(value)
        for original, mine in zip(self.model.buffers(), self._copy.buffers(), strict=True):
            original.copy_(mine)
        self.model.train()
        return [self._losses.cpu()]


def trials(
    models: Sequence[nn.Module],
    data: Dataset | Corpus,
    settings: Settings,
    masks: Sequence[Mapping[str, Tensor] | None],
    seeds: Sequence[int],
) -> list[Trial]:
    """A trial for each network."""
    return [Trial(model, data, settings, own, seed) for model, own, seed in zip(models, masks, seeds, strict=True)]
