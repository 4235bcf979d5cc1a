"""Models and mappings spread over processes in every way, and what they must have in common with one process's."""

import functools
import itertools
import math
import random
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

import lamplighter as ll
from lamplighter.distributed.parts import part_of
from lamplighter.targets import Layer
from strategies import bits

SIZES = (24, 13, 2, 33, 9)  # uneven over any world, and a layer smaller than it
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@functools.cache  # made once: each makes process groups of its own
def mesh_of(*shape: int) -> DeviceMesh:
    """A mesh of the first ranks; all ranks of the world must ask for it."""
    names = ("outer", "inner")[: len(shape)]
    return DeviceMesh("cpu", torch.arange(math.prod(shape)).view(shape), mesh_dim_names=names)


@functools.cache
def group_of(world: int) -> dist.ProcessGroup:
    """The first ranks; all ranks of the world must ask for them."""
    return dist.new_group(list(range(world)))


class Perceptron(nn.Module):
    """A chain of linear layers, in one dtype or in all in turn, with weights that tie if they are asked to."""

    def __init__(self, dtype: torch.dtype | None = None, ties: str = "none", sizes: tuple[int, ...] = SIZES) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.layers = nn.ModuleList(nn.Linear(*ends) for ends in itertools.pairwise(sizes))
        for place, layer in enumerate(self.layers):
            layer.weight.data = tied(torch.randn(layer.weight.shape, generator=generator), ties)
            layer.bias.data.zero_()
            layer.to(dtype or DTYPES[place % len(DTYPES)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype)).relu()
        return x


def tied(values: Tensor, ties: str) -> Tensor:
    """Values of which some, most or all are equal."""
    if ties == "ternary":
        return values.sign() * (values.abs() > 0.6)
    if ties == "constant":
        return torch.full_like(values, 0.5)
    return values


def fsdp(model: nn.Module, world: int) -> nn.Module:
    """FSDP2, every layer a group of its own."""
    mesh = mesh_of(world)
    return _fsdp(model, mesh) if dist.get_rank() < world else model


def fsdp_columns(model: nn.Module, world: int) -> nn.Module:
    """FSDP2 with shards along the second axis."""
    mesh = mesh_of(world)
    if dist.get_rank() < world:
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, shard_placement_fn=lambda p: Shard(p.dim() - 1) if _even(p, world) else None)
    return model


def hybrid(model: nn.Module, world: int) -> nn.Module:
    """FSDP2 within replicas."""
    mesh = mesh_of(2, world // 2)
    return _fsdp(model, mesh) if dist.get_rank() < world else model


def tensor_parallel(model: nn.Module, world: int) -> nn.Module:
    """Layers divided by outputs and by inputs in turn."""
    mesh = mesh_of(world)
    return _tensor_parallel(model, mesh) if dist.get_rank() < world else model


def both(model: nn.Module, world: int) -> nn.Module:
    """Tensor parallelism within FSDP2: strided shards."""
    mesh = mesh_of(world // 2, 2)
    if dist.get_rank() < world:
        _tensor_parallel(model, mesh["inner"])
        _fsdp(model, mesh["outer"])
    return model


def replicated(model: nn.Module, world: int) -> nn.Module:
    """DistributedDataParallel."""
    group = group_of(world)
    if dist.get_rank() >= world:
        return model
    return nn.parallel.DistributedDataParallel(model, process_group=group)


def _even(parameter: Tensor, world: int) -> bool:
    return parameter.shape[-1] % world == 0


def _fsdp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    plan = {f"layers.{i}": ColwiseParallel() if i % 2 == 0 else RowwiseParallel() for i in range(len(model.layers))}
    return parallelize_module(model, mesh, plan)


WAYS: dict[str, Callable[[nn.Module, int], nn.Module]] = {
    "fsdp": fsdp,
    "fsdp_columns": fsdp_columns,
    "hybrid": hybrid,
    "tensor_parallel": tensor_parallel,
    "both": both,
    "replicated": replicated,
}


def here(name: str, tensor: Tensor, whole: Tensor) -> Tensor:
    """What lies in this process of a whole tensor that is spread as another one is."""
    return part_of(Layer(name, tensor)).pick(whole) if isinstance(tensor, DTensor) else whole


def assert_same(
    spread: ll.Masks, alone: ll.Masks, weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> None:
    """The same masks, counts and weights, bit for bit, of what lies here."""
    assert spread.kept == alone.kept
    assert str(spread) == str(alone)
    for name, mask in alone.items():
        assert torch.equal(spread.here(name), here(name, weights[name], mask)), name
        local = weights[name].to_local() if isinstance(weights[name], DTensor) else weights[name]
        assert torch.equal(bits(local), bits(here(name, weights[name], expected[name]))), name


def assert_parts_are_right(spread: nn.Module, alone: nn.Module) -> None:
    """What we take to lie here does lie here."""
    whole = dict(alone.named_parameters())
    for name, parameter in spread.named_parameters():
        if isinstance(parameter, DTensor):
            assert torch.equal(bits(parameter.to_local()), bits(here(name, parameter, whole[name]))), name


def random_weights(random_: random.Random) -> dict[str, Tensor]:
    """A few layers of any dtype and shape, most with ties."""
    generator = torch.Generator().manual_seed(random_.randrange(1 << 30))
    weights = {}
    for place in range(random_.randint(1, 5)):
        shape = [random_.choice((1, 2, 3, 5, 8, 17)) for _ in range(random_.choice((1, 2, 2, 2, 3, 4)))]
        values = torch.randn(shape, generator=generator)
        kind = random_.choice(("none", "ternary", "constant", "rounded", "zeros"))
        values = {"rounded": values.round(decimals=1), "zeros": values * 0}.get(kind, tied(values, kind))
        weights[f"{random_.choice('abc')}.{place}"] = values.to(random_.choice(DTYPES))
    return weights


def random_placements(random_: random.Random, mesh: DeviceMesh, tensor: Tensor) -> list[Placement]:
    """Any placement that torch can make of a tensor."""
    placements: list[Placement] = [
        random_.choice([Replicate(), *(Shard(axis) for axis in range(tensor.dim()))]) for _ in range(mesh.ndim)
    ]
    if mesh.ndim == 2 and random_.random() < 0.5:
        axis = random_.randrange(tensor.dim())
        if tensor.shape[axis] % mesh.size() == 0:
            placements = [_StridedShard(axis, split_factor=mesh.size(1)), Shard(axis)]
    return placements
