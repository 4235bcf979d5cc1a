"""Checkpoints of Lightning's ModelPruning."""

import argparse

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelPruning
from torch import nn

import lamplighter as ll
from lamplighter.migration.reading import describe


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch, index):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def trained(folder, *, permanent):
    module = Net()
    pruning = ModelPruning(
        "l1_unstructured",
        [(module.net[0], "weight"), (module.net[2], "weight")],
        amount=0.5,
        make_pruning_permanent=permanent,
        use_lottery_ticket_hypothesis=False,
    )
    trainer = pl.Trainer(
        default_root_dir=folder,
        callbacks=[pruning],
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, torch.randn(4, 4, 8))
    trainer.save_checkpoint(folder / "pruned.ckpt")
    return module


@pytest.mark.parametrize("permanent", [False, True])
def test_checkpoints_come_back_dense_with_their_masks(tmp_path, permanent):
    module = trained(tmp_path, permanent=permanent)
    path = tmp_path / "pruned.ckpt"
    said = describe(path)
    assert said.startswith(f"a checkpoint of Lightning {pl.__version__}")
    assert ("torch.nn.utils.prune: 2 tensors" in said) is not permanent
    state, masks = ll.read_sparse(path)
    layers = {"net.0.weight": module.net[0], "net.2.weight": module.net[2]}
    assert set(state) == {*layers, "net.0.bias", "net.2.bias"}
    assert all(torch.equal(state[name], layer.weight) for name, layer in layers.items())
    assert masks.kept == {name: int(layer.weight.count_nonzero()) for name, layer in layers.items()}
    assert masks.sparsity > 0.6
    fresh = Net()
    fresh.load_state_dict(state)
    masks.apply(fresh)
    assert all(torch.equal(value, state[name]) for name, value in fresh.state_dict().items())


def test_a_live_module_of_lightning_is_adopted(tmp_path):
    module = trained(tmp_path, permanent=False)
    expected = {
        name: module.net[index].weight.detach().clone() for name, index in (("net.0.weight", 0), ("net.2.weight", 2))
    }
    masks = ll.adopt(module)
    assert all(torch.equal(module.get_parameter(name), value) for name, value in expected.items())
    assert all(torch.equal(masks[name], value != 0) for name, value in expected.items())


def test_what_only_its_own_code_could_read_is_refused(tmp_path):
    path = tmp_path / "odd.ckpt"
    torch.save({"state_dict": {"fc.weight": torch.ones(2, 2)}, "hyper_parameters": argparse.Namespace(lr=1)}, path)
    for attempt in (ll.read_sparse, describe):
        with pytest.raises(
            ll.LamplighterError, match=r"odd\.ckpt holds objects beside its tensors \(argparse\.Namespace\)"
        ):
            attempt(path)
