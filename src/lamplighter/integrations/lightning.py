"""A callback of Lightning's `Trainer` that prunes while it trains."""

import importlib.util
from typing import TYPE_CHECKING, Any

from torch import nn

from lamplighter.integrations.pruner import Pruner, refuse_sharded
from lamplighter.masks import Masks
from lamplighter.optional import require

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
# Lightning goes by two names; whoever has but the older is served as well.
elif importlib.util.find_spec("lightning") is None and importlib.util.find_spec("pytorch_lightning") is not None:
    from pytorch_lightning import Callback
else:
    require("the callback of Lightning's Trainer", "lightning", "lightning")
    from lightning.pytorch import Callback

_SHARDED = ("FSDP", "DeepSpeed", "ModelParallel")


class Pruning(Pruner, Callback):
    __doc__ = f"""{Pruner.__doc__}
    The trainer's checkpoints hold the masks; a training that goes on from one (`ckpt_path`) goes on as if it had never
    stopped. Averages that Lightning's own callbacks keep of the weights are masked too. Logged are `sparsity`, and
    after each pruning every layer's density.

        trainer = Trainer(max_steps=2000, callbacks=[Pruning(schedule, every=100)])
    """

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Go on from the checkpoint, if the training does; find what can be found wrong."""
        strategy = type(trainer.strategy).__name__
        if strategy.startswith(_SHARDED):
            refuse_sharded(strategy)
        own = [average for each in trainer.callbacks if (average := _average_of(each)) is not None]  # type: ignore[attr-defined]
        self.averages = [*(each for each in self.averages if all(each is not one for one in own)), *own]
        self.begin(pl_module, trainer.optimizers)
        if self.unit == "epoch":
            self.reach(trainer.current_epoch)  # an epoch that was not seen to be over when the checkpoint was written
        if self.masks is not None:
            self._log_densities(trainer)

    def on_train_batch_end(
        self,
        trainer: "Trainer",
        pl_module: "LightningModule",
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """A batch was trained, which may have been the last before a step of the optimizer."""
        if self.unit == "step" and self.reach(trainer.global_step):
            self._log_densities(trainer)
        pl_module.log("sparsity", self.sparsity, on_step=True, on_epoch=False)

    def on_train_epoch_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """An epoch is over."""
        if self.unit == "epoch" and self.reach(trainer.current_epoch + 1):
            self._log_densities(trainer)

    def on_train_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """The training is over."""
        if not trainer.should_stop:  # not stopped before its end
            self.finish(trainer.current_epoch if self.unit == "epoch" else trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """What the trainer puts into its checkpoints: plain data and tensors of bytes."""
        if self.masks is None:
            return self.record()
        packed = {name: bits.cpu() for name, bits in self.masks.packed.items()}
        return {**self.record(), "packed": packed, "shapes": {n: list(s) for n, s in self.masks.shapes.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What the trainer found in a checkpoint."""
        found = state_dict["masks"] is not None
        self.restore(state_dict, Masks.from_packed(state_dict["packed"], state_dict["shapes"]) if found else None)

    def _log_densities(self, trainer: "Trainer") -> None:
        for logger in trainer.loggers:
            logger.log_metrics({"sparsity": self.sparsity, **self.densities()}, step=trainer.global_step)


def _average_of(callback: object) -> nn.Module | None:
    """The averaged weights that one of Lightning's callbacks keeps (`WeightAveraging`, `StochasticWeightAveraging`)."""
    average = getattr(callback, "_average_model", None)
    return average if isinstance(average, nn.Module) else None
