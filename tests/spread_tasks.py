"""What the processes of a world are given to do in the tests of distributed pruning."""

import copy
import os
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import lamplighter as ll
from lamplighter.distributed.collectives import measured
from lamplighter.distributed.parts import part_of
from lamplighter.targets import Layer
from spread_models import (
    WAYS,
    Perceptron,
    assert_parts_are_right,
    assert_same,
    fsdp,
    here,
    mesh_of,
    random_placements,
    random_weights,
)
from strategies import bits


def spread_and_alone(way: str, world: int, *args: Any) -> tuple[nn.Module, nn.Module]:
    """A model spread some way, and the same in one process."""
    return WAYS[way](Perceptron(*args), world), Perceptron(*args)


def taking_part(world: int) -> bool:
    """Whether this rank is one of the first `world`."""
    return dist.get_rank() < world


def prune_model(way: str, world: int, dtype: torch.dtype | None, ties: str, sparsity: float, options: dict) -> None:
    """A model pruned in `world` processes is pruned as in one."""
    spread, alone = spread_and_alone(way, world, dtype, ties)
    if taking_part(world):
        inner = spread.module if way == "replicated" else spread
        assert_parts_are_right(inner, alone)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ll.LamplighterWarning)  # layers may lose their last weight
            expected = ll.prune(alone, sparsity, **options)
            budgets = ll.allocate(spread, sparsity, **options)
            masks = ll.prune(spread, sparsity, **options)
        assert budgets == expected.kept
        assert_same(masks, expected, dict(inner.named_parameters()), dict(alone.named_parameters()))


def prune_mappings(shape: tuple[int, ...], seed: int, cases: int) -> None:
    """Mappings of any weights, spread in any way, are pruned as whole ones are, in two rounds."""
    mesh, random_ = mesh_of(*shape), random.Random(seed)
    if not taking_part(mesh.size()):
        return
    for _ in range(cases):
        alone = random_weights(random_)
        spread = {
            name: distribute_tensor(value.clone(), mesh, random_placements(random_, mesh, value), src_data_rank=None)
            for name, value in alone.items()
        }
        options = {
            "method": random_.choice(("lamp", "lamp", "global", "uniform", "erk")),
            "score": random_.choice(("magnitude", "magnitude", "random")),
        }
        masks: list[ll.Masks | None] = [None, None]
        for sparsity in sorted(random_.choice((0.0, 0.3, 0.5, 0.9, 1.0)) for _ in range(2)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ll.LamplighterWarning)
                masks[0] = ll.prune(alone, sparsity, masks=masks[0], **options)
                masks[1] = ll.prune(spread, sparsity, masks=masks[1], **options)
            assert_same(masks[1], masks[0], spread, alone)


def look_at(world: int) -> None:
    """A mask is a DTensor placed as its weight; what is counted is of whole layers, and asks nobody."""
    spread, alone = spread_and_alone("fsdp", world)
    if not taking_part(world):
        return
    expected, masks = ll.prune(alone, 0.5), ll.prune(spread, 0.5)
    name = next(iter(masks))
    assert isinstance(masks[name], DTensor)
    assert masks[name].placements == dict(spread.named_parameters())[name].placements
    assert torch.equal(masks[name].full_tensor(), expected[name])
    if dist.get_rank() == 0:
        assert str(masks) == str(expected)
        assert masks.density == expected.density
    both = masks & ll.prune(spread, 0.7, score="random", masks=masks)
    assert both.kept == (expected & ll.prune(alone, 0.7, score="random", masks=expected)).kept
    assert both != masks
    assert masks == masks & masks
    assert copy.deepcopy(masks) == masks


def save_and_load(way: str, world: int, other_way: str, other_world: int, folder: str) -> None:
    """The file is that of one process, and fits a model spread otherwise."""
    spread, alone = spread_and_alone(way, world)
    others, _ = spread_and_alone(other_way, other_world)
    if taking_part(world):
        expected, masks = ll.prune(alone, 0.6), ll.prune(spread, 0.6)
        mine = Path(folder) / f"alone-{dist.get_rank()}.safetensors"
        expected.save(mine)
        masks.save(Path(folder) / "spread.safetensors")
        assert (Path(folder) / "spread.safetensors").read_bytes() == mine.read_bytes()
    dist.barrier()
    if taking_part(other_world):
        expected = ll.prune(Perceptron(), 0.6)
        loaded = ll.Masks.load(Path(folder) / "spread.safetensors")
        assert loaded == expected
        loaded.apply(others)
        alone = Perceptron()
        expected.apply(alone)
        assert_same(loaded, expected, dict(others.named_parameters()), dict(alone.named_parameters()))
        again = ll.prune(others, 0.8, masks=ll.Masks.load(Path(folder) / "spread.safetensors"))
        expected_again = ll.prune(alone, 0.8, masks=expected)
        assert_same(again, expected_again, dict(others.named_parameters()), dict(alone.named_parameters()))
    dist.barrier()


def masks_of_other_parts(world: int) -> str:
    """Masks that lie in other parts than the weights are refused."""
    rows, columns = fsdp(Perceptron(), world), WAYS["tensor_parallel"](Perceptron(), world)
    try:
        ll.prune(rows, 0.5).apply(columns)
    except ll.LamplighterError as error:
        return str(error)
    return ""


def score_model(way: str, world: int, score: Any, evidence: str) -> None:
    """Scores that look at each weight by itself."""
    spread, alone = spread_and_alone(way, world)
    if not taking_part(world):
        return
    generator = torch.Generator().manual_seed(1)
    whole = {name: torch.randn(p.shape, generator=generator) for name, p in alone.named_parameters()}
    if score == "wanda":
        whole = {name: value[0].abs() for name, value in whole.items() if value.dim() == 2}
    given: Any = whole
    if evidence == "seed":
        whole = given = 5
    elif evidence == "spread":
        given = {}
        for name, parameter in spread.named_parameters():
            if isinstance(parameter, DTensor):
                part = part_of(Layer(name, parameter))
                given[name] = DTensor.from_local(
                    part.pick(whole[name]).contiguous(),
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
            else:
                given[name] = whole[name]
    expected = ll.prune(alone, 0.6, score=score, evidence=whole)
    masks = ll.prune(spread, 0.6, score=score, evidence=given)
    assert_same(masks, expected, dict(spread.named_parameters()), dict(alone.named_parameters()))


def distance(name: str, weight: Tensor, evidence: Any) -> Tensor:
    """A function of a user's own, entry by entry."""
    return (weight - 0.5).abs().float()


def gathering(name: str, weight: Tensor, evidence: Any) -> Tensor:
    """A function that does not return what is placed as the weight."""
    return weight.full_tensor().abs().float()


def failing_on_one(name: str, weight: Tensor, evidence: Any) -> Tensor:
    """A function that fails in one process."""
    if dist.get_rank() == 1:
        raise KeyError("nothing of the kind")
    return weight.abs().float()


def patterns(way: str, world: int, pattern: str) -> None:
    """Patterns of which every process has whole rows."""
    sizes = (24, 12, 8, 20, 4)
    spread, alone = WAYS[way](Perceptron(None, "none", sizes), world), Perceptron(None, "none", sizes)
    if not taking_part(world):
        return
    expected, masks = ll.prune(alone, 0.5, pattern=pattern), ll.prune(spread, 0.5, pattern=pattern)
    assert_same(masks, expected, dict(spread.named_parameters()), dict(alone.named_parameters()))
    if pattern == "row":
        expected = ll.prune(alone, 0.7, pattern=pattern, masks=expected)
        masks = ll.prune(spread, 0.7, pattern=pattern, masks=masks)
        assert_same(masks, expected, dict(spread.named_parameters()), dict(alone.named_parameters()))


def snip_of_gradients(world: int) -> None:
    """What a backward pass leaves is evidence; to ask for gradients otherwise is an error, not zeros."""
    spread, _ = spread_and_alone("fsdp", world, torch.float32)
    if not taking_part(world):
        return
    data, loss = [(torch.ones(4, 24), None)], lambda output, target: output.sum()
    assert "run a backward pass" in error_of(lambda: ll.gradients(spread, data, loss))
    spread(data[0][0]).sum().backward()
    alone = Perceptron(torch.float32)
    expected = ll.prune(alone, 0.5, score="snip", evidence=ll.gradients(alone, data, loss))
    evidence = {name: parameter.grad for name, parameter in spread.named_parameters()}
    masks = ll.prune(spread, 0.5, score="snip", evidence=evidence)
    assert_same(masks, expected, dict(spread.named_parameters()), dict(alone.named_parameters()))


class Mixture(nn.Module):
    """A stack of experts, each a layer."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.experts = nn.Module()
        self.experts.down_proj = nn.Parameter(torch.randn(5, 6, 8, generator=generator))
        self.head = nn.Linear(6, 4, bias=False)
        nn.init.constant_(self.head.weight, 0.5)


def experts(world: int, axis: int, folder: str) -> None:
    """Experts of a stack that is divided among processes, between experts or within each."""
    mesh, alone, spread = mesh_of(world), Mixture(), Mixture()
    if not taking_part(world):
        return
    fully_shard(spread, mesh=mesh, shard_placement_fn=lambda p: Shard(axis) if p.dim() == 3 else None)
    expected, masks = ll.prune(alone, 0.6), ll.prune(spread, 0.6)
    assert masks.kept == expected.kept
    whole, local = alone.experts.down_proj, spread.experts.down_proj
    assert torch.equal(bits(local.to_local()), bits(here("w", local, whole)))
    masks.save(Path(folder) / "spread.safetensors")
    expected.save(Path(folder) / f"alone-{dist.get_rank()}.safetensors")
    files = [Path(folder) / f"{name}.safetensors" for name in ("spread", f"alone-{dist.get_rank()}")]
    assert files[0].read_bytes() == files[1].read_bytes()
    ll.Masks.load(files[0]).apply(spread)
    assert torch.equal(bits(local.to_local()), bits(here("w", local, whole)))
    for name in masks:
        if axis == 0 and "experts" in name:
            assert error_of(lambda name=name: masks[name]).startswith(f"LamplighterError: {name} is an expert")
        else:
            assert torch.equal(masks[name].full_tensor(), expected[name])


def train(way: str, world: int, steps: int) -> None:
    """Pruned weights are zero after every step, and their gradients before it, with no communication of ours."""
    spread, _ = spread_and_alone(way, world, torch.float32, "none", (24, 12, 8, 20, 4))  # torch divides them evenly
    if not taking_part(world):
        return
    inner = spread.module if way == "replicated" else spread
    optimizer = torch.optim.AdamW(spread.parameters(), lr=0.1, foreach=False)
    step(spread, optimizer)  # moments of the dense model
    masks = ll.prune(spread, 0.8, method="uniform")
    with measured() as traffic:
        masks.hold(optimizer)
        for _ in range(steps):
            step(spread, optimizer)
            dead = {name: ~masks.here(name) for name in masks}
            parameters = dict(inner.named_parameters())
            assert all(not memory(parameters[name])[dead[name]].any() for name in masks)
            assert all(not memory(parameters[name].grad)[dead[name]].any() for name in masks)
        masks.release()
        step(spread, optimizer)
    assert traffic.calls == 0
    moved = sum(int(memory(parameters[name])[dead[name]].count_nonzero()) for name in masks)
    assert moved > 0 or not sum(int(each.sum()) for each in dead.values())


def memory(tensor: Tensor) -> Tensor:
    """What of a tensor lies here."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One step of training."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(16, 24, generator=generator)).square().mean().backward()
    optimizer.step()


def after_a_forward(world: int) -> None:
    """FSDP holds the root's whole weights after a forward: what is pruned are the shards."""
    mesh = mesh_of(world)
    if not taking_part(world):
        return
    spread, alone = fully_shard(Perceptron(torch.float32), mesh=mesh), Perceptron(torch.float32)
    with torch.no_grad():
        spread(torch.randn(2, 24))
    assert not any(isinstance(p, DTensor) for p in spread.parameters())
    expected, masks = ll.prune(alone, 0.6), ll.prune(spread, 0.6)
    assert_same(masks, expected, dict(spread.named_parameters()), dict(alone.named_parameters()))
    with torch.no_grad():
        spread(torch.randn(2, 24))
    masks.apply(spread)
    assert_same(masks, expected, dict(spread.named_parameters()), dict(alone.named_parameters()))


def rounds(way: str, world: int) -> None:
    """Rounds that rewind prune as in one process."""
    spread, alone = spread_and_alone(way, world)
    if not taking_part(world):
        return
    inner = spread.module if way == "replicated" else spread
    options = {"schedule": [0.4, 0.7, 0.9], "rewind": "init"}
    pairs = zip(ll.rounds(spread, **options), ll.rounds(alone, **options), strict=True)
    for count, (mine, expected) in enumerate(pairs):
        assert mine.sparsity == expected.sparsity
        assert_same(mine.masks, expected.masks, dict(inner.named_parameters()), dict(alone.named_parameters()))
        with torch.no_grad():  # as if trained
            for (name, parameter), whole in zip(inner.named_parameters(), alone.parameters(), strict=True):
                change = torch.linspace(0.5, 1 + count, whole.numel()).view(whole.shape).to(whole.dtype)
                memory(parameter).mul_(here(name, parameter, change))
                whole.mul_(change)


def error_of(function: Callable[[], Any]) -> str:
    """The error that a function ends with, its kind and text."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def disagree(world: int, about: str) -> str:
    """What each process says when one asks otherwise."""
    odd = dist.get_rank() == world - 1
    sizes = (24, 13, 2, 33, 8) if odd and about == "shapes" else (24, 13, 2, 33, 9)
    dtype = torch.float32 if odd and about == "dtypes" else torch.bfloat16
    model = fsdp(Perceptron(dtype, "none", sizes), world)
    if not taking_part(world):
        return ""
    options: dict[str, Any] = {"sparsity": 0.5}
    other: dict[str, dict[str, Any]] = {
        "sparsity": {"sparsity": 0.6},
        "method": {"method": "global"},
        "unknown method": {"method": "lampp"},
        "layers": {"exclude": "layers.1.weight"},
        "nothing": {"exclude": "*nothing*"},
        "pattern": {"pattern": "row"},
        "densities": {"min_density": 0.1},
        "masks": {"masks": 7},
    }
    if odd:
        options |= other.get(about, {})
    return error_of(lambda: ll.prune(model, **options))


def broken_on_one(world: int, what: str) -> str:
    """What each process says of what only one of them has."""
    model = WAYS["hybrid" if what == "replicas" else "fsdp"](Perceptron(torch.float32), world)
    if not taking_part(world):
        return ""
    first = memory(next(model.parameters()))
    if dist.get_rank() == 1 and what == "nan":
        first.view(-1)[0] = torch.nan
    if dist.get_rank() == world - 1 and what == "replicas":
        first.view(-1)[0] += 1
    score = {"function": failing_on_one, "gathering": gathering}.get(what, "magnitude")
    return error_of(lambda: ll.prune(model, 0.5, score=score))


def exiting(name: str, weight: Tensor, evidence: Any) -> Tensor:
    """A function at which one process ends."""
    if dist.get_rank() == 1:
        os._exit(3)
    return weight.abs().float()


def sleeping(name: str, weight: Tensor, evidence: Any) -> Tensor:
    """A function at which one process hangs."""
    if dist.get_rank() == 1:
        time.sleep(8)
    return weight.abs().float()


def lose_one(score: Callable[..., Tensor]) -> tuple[str, float]:
    """What the others say, and after how many seconds, when one is lost while pruning."""
    model = fsdp(Perceptron(torch.float32), dist.get_world_size())
    begun = time.perf_counter()
    said = error_of(lambda: ll.prune(model, 0.5, score=score))
    return said, time.perf_counter() - begun


def traffic(world: int, shape: tuple[int, ...], dtype: torch.dtype, method: str, placement: str) -> int:
    """How many bytes each process sends to prune one layer, beyond those for one of a single weight."""
    mesh = mesh_of(world)
    if not taking_part(world):
        return 0
    placements = {"rows": [Shard(0)], "columns": [Shard(1)], "replicas": [Replicate()]}[placement]
    weight = torch.empty(shape, dtype=dtype)
    # Made here, each part by itself, so that a large layer takes no more than its own size.
    part = distribute_tensor(weight, mesh, placements, src_data_rank=None)
    generator = torch.Generator().manual_seed(0 if placement == "replicas" else dist.get_rank())
    memory(part).normal_(std=0.02, generator=generator)
    with measured() as sent:
        ll.prune({"layer": part}, 0.9, method=method)
    return sent.sent
