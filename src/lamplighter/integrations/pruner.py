"""Pruning while somebody else's loop trains: what is due when, and what a checkpoint has to remember of it."""

import hashlib
import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from numbers import Integral, Real
from typing import Any, NoReturn
from weakref import ref

from torch import nn
from torch.optim import Optimizer

from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.masks import Masks
from lamplighter.pruning import allocate, prune
from lamplighter.schedules import Schedule
from lamplighter.scores import find_score

UNITS = ("step", "epoch")
_REHEARSED = 1000  # how many prunings ahead a schedule is asked for the first that removes anything


class Pruner:
    """Prunes a model to a schedule while a trainer trains it, and keeps what was pruned at zero.

    After every so many steps of the optimizer (or epochs), and before the first, the schedule is asked how sparse the
    model shall be by then; if that is more than before, the model is pruned, nothing that was pruned comes back, and
    the masks are held on the trainer's optimizers. After the training, `masks` are those of the weights.

    Args:
        schedule: finished steps -> sparsity (finished epochs, if that is the unit), such as `ll.schedules.cubic(...)`.
        every: how many steps, or epochs, lie between two prunings.
        unit: "step" (of the optimizer, however many batches it takes) or "epoch".
        method: as for `prune`.
        score: as for `prune`.
        evidence: as for `prune`, or a function of the model that collects it anew before each pruning.
        masks: what was pruned before; nothing of it comes back.
        averages: modules with the same layers that hold averages of the weights (an EMA): they are masked too.
        options: the other options of `prune`, such as `include`, `exclude`, `pattern` or `min_density`.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        every: int,
        unit: str = "step",
        method: Any = "lamp",
        score: Any = "magnitude",
        evidence: Any = None,
        masks: Masks | None = None,
        averages: Iterable[nn.Module] = (),
        **options: Any,
    ) -> None:
        _check(schedule, every, unit)
        unknown = options.keys() - inspect.signature(prune).parameters.keys()
        if unknown or "weights_or_model" in options or "sparsity" in options:
            wrong = sorted(unknown) or [name for name in ("weights_or_model", "sparsity") if name in options]
            raise TypeError(f"Pruning() got options that it cannot pass to prune(): {', '.join(wrong)}")
        self.schedule, self.every, self.unit, self.evidence = schedule, int(every), unit, evidence
        self.options = {"method": method, "score": score, **options}
        self.averages = list(averages)
        self.masks = self._given = masks
        self.done, self.asked, self.pruned_at = -1, 0.0, -1
        self._restored = False
        self._model: ref[nn.Module] | None = None
        self._optimizers: Sequence[Optimizer] = ()
        self._printed: tuple[Masks, str] | None = None

    def begin(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Make ready to train this model, from the beginning or from where `restore` said.

        In a new training, masks of another model are forgotten; those of this very model stay.
        """
        fresh, self._restored = not self._restored, False
        if fresh:
            same = self._model is not None and self._model() is model
            self.masks = self.masks if same else self._given
            self.done, self.asked, self.pruned_at = -1, 0.0, -1
        self._model, self._optimizers = ref(model), optimizers
        self._rehearse(model)
        if self.masks is not None:
            self.masks.apply(model)
            self._hold(self.masks)
        if fresh:
            self.reach(0)

    def reach(self, count: int) -> bool:
        """So many steps (or epochs) are finished: prune, if that is due. Whether anything was pruned."""
        due = count - count % self.every
        if due <= self.done:
            return False
        self.done = due
        sparsity = self._sparsity_at(due)
        if sparsity <= self.asked or (self.masks is not None and sparsity <= self.masks.sparsity):
            return False
        model = self._model() if self._model is not None else None
        assert model is not None
        evidence = self.evidence(model) if callable(self.evidence) else self.evidence
        pruned = prune(model, sparsity, evidence=evidence, masks=self.masks, **self.options)
        self._hold(pruned)
        self.masks, self.asked, self.pruned_at = pruned, sparsity, due
        return True

    def finish(self, count: int) -> None:
        """The training ended after so many steps (or epochs): warn if the last pruning came after the last of them."""
        if 0 < self.pruned_at == count:
            warnings.warn(
                f"the model was pruned to sparsity {self.asked:.4g} after the last {self.unit}, {count:,}, and was not "
                "trained since; let the schedule end earlier",
                LamplighterWarning,
                stacklevel=2,
            )

    def record(self) -> dict[str, Any]:
        """What a checkpoint remembers beside the masks themselves, as plain data."""
        return {"unit": self.unit, "done": self.done, "asked": self.asked, "masks": self.fingerprint}

    def restore(self, record: Mapping[str, Any], masks: Masks | None) -> None:
        """Go on from what a checkpoint remembers; `begin` then applies and holds the masks."""
        if record["unit"] != self.unit:
            raise LamplighterError(
                f"the checkpoint's training pruned by the {record['unit']}, this one by the {self.unit}",
                f"go on as it began: unit={record['unit']!r}",
            )
        self.masks, self.done, self.asked = masks, int(record["done"]), float(record["asked"])
        self.pruned_at, self._restored = -1, True

    @property
    def fingerprint(self) -> str | None:
        """What tells one training's masks from another's; None before the first pruning."""
        if self.masks is None:
            return None
        if self._printed is None or self._printed[0] is not self.masks:
            self._printed = (self.masks, fingerprint(self.masks))
        return self._printed[1]

    @property
    def sparsity(self) -> float:
        """The fraction removed of all weights that count."""
        return 0.0 if self.masks is None else self.masks.sparsity

    def densities(self) -> dict[str, float]:
        """The fraction kept of each layer, under names that loggers take."""
        found = {} if self.masks is None else self.masks.densities()
        return {f"density/{_plain(name)}": density for name, density in found.items()}

    def _hold(self, masks: Masks) -> None:
        masks.hold(*self._optimizers)
        for average in self.averages:
            # A copy: masks belong to the weights that they were applied to last.
            Masks.from_packed(masks.packed, masks.shapes).apply(getattr(average, "module", average))

    def _sparsity_at(self, count: int) -> float:
        sparsity: Any = self.schedule(count)
        if isinstance(sparsity, bool) or not isinstance(sparsity, Real) or not 0 <= float(sparsity) <= 1:
            raise LamplighterError(
                f"the schedule asks for sparsity {sparsity!r} at {self.unit} {count:,}; expected a number from 0 to 1",
                "give plain numbers: 0.9 removes nine weights in ten",
            )
        if sparsity < self.asked:
            raise LamplighterError(
                f"the schedule goes down, from sparsity {self.asked} to {sparsity} at {self.unit} {count:,}",
                "what is pruned does not come back: let the sparsity grow",
            )
        return float(sparsity)

    def _rehearse(self, model: nn.Module) -> None:
        """Find now what would otherwise fail only when the first pruning is due. Magnitudes stand in for the score."""
        find_score(self.options["score"])
        ahead = (self._sparsity_at(count) for count in range(0, self.every * _REHEARSED, self.every))
        sparsity = next(islice((each for each in ahead if each > self.sparsity), 1), None) if self.done < 0 else None
        if sparsity is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LamplighterWarning)
            allocate(model, sparsity, masks=self.masks, **{**self.options, "score": "magnitude"})


def fingerprint(masks: Masks) -> str:
    """A digest of the layers' names, shapes and bits."""
    digest = hashlib.sha256()
    for name, packed in masks.packed.items():
        digest.update(f"{name} {masks.shapes[name]}\n".encode())
        digest.update(packed.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def refuse_sharded(what: str) -> NoReturn:
    """An error for a trainer that gives each process only a part of the weights."""
    raise LamplighterError(
        f"{what} shards the weights, and they are pruned whole here",
        "train on one device or with DistributedDataParallel, or prune before the training or after it",
    )


def _plain(name: str) -> str:
    """A layer's name without brackets, which some loggers refuse.

    >>> _plain("mlp.experts.gate_up_proj[3]")
    'mlp.experts.gate_up_proj.3'
    """
    return name.replace("[", ".").replace("]", "")


def _check(schedule: object, every: object, unit: object) -> None:
    if not callable(schedule):
        raise LamplighterError(
            f"schedule is {schedule!r}; expected a function from finished steps to sparsity",
            "for example ll.schedules.cubic(0.9, steps=1000), or lambda step: 0.9",
        )
    if isinstance(every, bool) or not isinstance(every, Integral) or int(every) < 1:
        raise LamplighterError(f"every is {every!r}; expected an integer of at least 1", "every=100, for example")
    if unit not in UNITS:
        raise LamplighterError(f"unit is {unit!r}; expected one of {', '.join(UNITS)}", 'unit="epoch", for example')
