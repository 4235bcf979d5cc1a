"""Train, prune and go on training a model that FSDP2 shards over processes, saved and resumed with any number of them.

    torchrun --nproc-per-node 2 examples/fsdp2_training.py --folder runs --steps 20
    torchrun --nproc-per-node 4 examples/fsdp2_training.py --folder runs --steps 40

The second command goes on where the first stopped. Runs on CPUs (gloo), and on GPUs where there are any (nccl).
"""

import argparse
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import lamplighter as ll

WIDTH = 96


def sharded_model(kind: str) -> nn.Module:
    """A small network, every block and then the whole sharded over all processes."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)]
    model = nn.Sequential(*blocks, nn.Linear(WIDTH, 10)).to(kind)
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def batch(step: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Examples of this process: classes that depend on the largest of ten sums."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    inputs = torch.randn(64, WIDTH, generator=generator)
    return inputs.to(kind), inputs[:, :90].view(64, 10, 9).sum(2).argmax(1).to(kind)


def check_zero(model: nn.Module, masks: ll.Masks) -> None:
    """Stop unless every pruned weight of this process's shards is exactly zero."""
    parameters = dict(model.named_parameters())
    for name in masks:
        parameter = parameters[name]
        assert isinstance(parameter, DTensor)
        assert not parameter.to_local()[~masks.here(name)].any(), name


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, kind: str, masks: ll.Masks | None) -> None:
    """Some steps of training; what was pruned stays zero."""
    for step in steps:
        inputs, labels = batch(step, kind)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if masks is not None:
            check_zero(model, masks)
        if step % 10 == 9 and dist.get_rank() == 0:
            print(f"step {step + 1}: loss {float(loss.detach()):.3f}")


def main() -> None:
    """Train densely, prune, train on; or resume what was saved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where states are saved")
    parser.add_argument("--steps", type=int, default=20, help="in all, dense ones included")
    parser.add_argument("--dense", type=int, default=10, help="before pruning")
    parser.add_argument("--sparsity", type=float, default=0.9)
    asked = parser.parse_args()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=timedelta(minutes=2))
    model = sharded_model(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    saved = sorted(asked.folder.glob("step-*"))
    if saved:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
        dcp.load(state, checkpoint_id=saved[-1] / "state")
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        begun = state["step"]
        masks = ll.Masks.load(saved[-1] / "masks.safetensors").apply(model)
    else:
        begun = asked.dense
        train(model, optimizer, range(begun), kind, None)
        masks = ll.prune(model, asked.sparsity)
    masks.hold(optimizer)
    check_zero(model, masks)
    train(model, optimizer, range(begun, asked.steps), kind, masks)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": asked.steps}
    folder = asked.folder / f"step-{asked.steps:06d}"
    dcp.save(state, checkpoint_id=folder / "state")
    masks.save(folder / "masks.safetensors")
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes, steps {begun} to {asked.steps}, {masks!r}")
    dist.barrier()  # nobody leaves while another still talks to it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
