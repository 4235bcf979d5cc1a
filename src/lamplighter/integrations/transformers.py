"""A callback of Hugging Face's `Trainer` that prunes while it trains."""

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.integrations.pruner import Pruner, fingerprint, refuse_sharded
from lamplighter.masks import Masks
from lamplighter.optional import require

require("the callback of Hugging Face's Trainer", "hf", "transformers", "accelerate")

from transformers.trainer_callback import CallbackHandler, TrainerCallback  # noqa: E402

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

FILE = "masks.safetensors"  # in the folder of each checkpoint
_KEY = "lamplighter"  # in the trainer's own state


class Pruning(Pruner, TrainerCallback):
    __doc__ = f"""{Pruner.__doc__}
    The trainer's checkpoints get the masks as a file `{FILE}`; a training that goes on from one goes on as if it had
    never stopped. `sparsity` is in every log, each layer's density in the first one after a pruning.

        trainer = Trainer(model, args, train_dataset=data, callbacks=[Pruning(schedule, every=100)])
    """

    _changed = False

    def on_train_begin(
        self,
        args: "TrainingArguments",
        state: "TrainerState",
        control: "TrainerControl",
        **given: Any,
    ) -> None:
        """Go on from the checkpoint, if the training does; find what can be found wrong."""
        if getattr(args, "fsdp", None) or getattr(args, "deepspeed", None):
            refuse_sharded("FSDP" if getattr(args, "fsdp", None) else "DeepSpeed")
        _log_before_reporters(self)
        record = _stored(state).get(_KEY) if state.global_step else None
        if record is not None:
            self.restore(record, _masks_of(args, state, record, self._given))
        self.begin(given["model"], [_inner(given["optimizer"])])
        self._changed = True
        self._remember(state)

    def on_step_end(
        self,
        args: "TrainingArguments",
        state: "TrainerState",
        control: "TrainerControl",
        **given: Any,
    ) -> None:
        """The optimizer has made a step, which may have been the last of an epoch; a checkpoint may be written next."""
        self._changed |= self.reach(state.global_step if self.unit == "step" else _finished(state))
        self._remember(state)

    def on_log(
        self,
        args: "TrainingArguments",
        state: "TrainerState",
        control: "TrainerControl",
        **given: Any,
    ) -> None:
        """Add sparsity and densities to what the trainer logs, for those that report it."""
        values = {"sparsity": self.sparsity}
        if self._changed:
            values |= self.densities()
            self._changed = False
        given["logs"].update(values)
        state.log_history[-1] |= values

    def on_save(
        self,
        args: "TrainingArguments",
        state: "TrainerState",
        control: "TrainerControl",
        **given: Any,
    ) -> None:
        """Put the masks beside the weights."""
        if self.masks is None or not state.is_world_process_zero:
            return
        folder = _folder(args, state.global_step)
        if not folder.is_dir():
            warnings.warn(
                f"the masks were not saved: there is no checkpoint in {folder}", LamplighterWarning, stacklevel=2
            )
            return
        self.masks.save(folder / FILE)

    def on_train_end(
        self,
        args: "TrainingArguments",
        state: "TrainerState",
        control: "TrainerControl",
        **given: Any,
    ) -> None:
        """The masks of the weights that the trainer leaves behind, which may be those of an earlier checkpoint."""
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        if best is None:
            if state.global_step >= state.max_steps:  # not stopped before
                self.finish(_finished(state) if self.unit == "epoch" else state.global_step)
            return
        if self.masks is not None:
            self.masks.release()
        path = Path(best) / FILE
        self.masks = Masks.load(path).apply(given["model"]) if path.exists() else None

    def _remember(self, state: "TrainerState") -> None:
        _stored(state)[_KEY] = self.record()


def _stored(state: "TrainerState") -> dict[str, Any]:
    """What the trainer's state keeps for callbacks, and writes into each checkpoint as JSON."""
    stored: Any = state.stateful_callbacks  # declared as the list that it is made of
    assert isinstance(stored, dict)
    return stored


def _log_before_reporters(callback: Pruner) -> None:
    """Let the callback stand before those that report what is logged.

    The trainer gives callbacks no way to log; what they add to a log is seen by those that stand after them. It passes
    its list of callbacks to none of them either, so it is taken from the one that calls this.
    """
    handler = sys._getframe(2).f_locals.get("self")
    if isinstance(handler, CallbackHandler) and callback in handler.callbacks:
        handler.callbacks.remove(callback)
        handler.callbacks.insert(0, callback)


def _inner(optimizer: Any) -> Optimizer:
    """The optimizer inside accelerate's, whose own steps do not call the hooks."""
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
    found: Optimizer = optimizer
    return found


def _finished(state: "TrainerState") -> int:
    """How many epochs are over."""
    return int(state.epoch or 0)


def _folder(args: "TrainingArguments", step: int) -> Path:
    return Path(args.output_dir or ".") / f"checkpoint-{step}"


def _masks_of(
    args: "TrainingArguments", state: "TrainerState", record: dict[str, Any], given: Masks | None
) -> Masks | None:
    """The masks that the checkpoint's training had, wherever they are: known by their fingerprint."""
    if record["masks"] is None:
        return None
    if given is not None and fingerprint(given) == record["masks"]:
        return given
    named = args.resume_from_checkpoint
    folders = [*([Path(named)] if isinstance(named, str) else []), _folder(args, state.global_step)]
    for path in (folder / FILE for folder in folders):
        if path.exists():
            masks = Masks.load(path)
            if fingerprint(masks) == record["masks"]:
                return masks
    raise LamplighterError(
        f"the training goes on from step {state.global_step:,}, and its masks are not in {folders[-1] / FILE}",
        f'name the file of the checkpoint: Pruning(..., masks=ll.Masks.load(".../{FILE}"))',
    )
