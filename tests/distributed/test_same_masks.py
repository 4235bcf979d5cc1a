"""The masks of several processes are those of one with the full weights, bit for bit."""

import pytest
import torch

import spread_tasks as tasks
from strategies import METHODS

EVERY_WAY = [("fsdp", 2), ("fsdp", 3), ("fsdp", 4), ("tensor_parallel", 2), ("tensor_parallel", 4), ("both", 4)]
EVERY_WAY += [("hybrid", 4), ("fsdp_columns", 2), ("replicated", 2)]
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("ties", ["none", "ternary", "constant"])
@pytest.mark.parametrize(("way", "size"), EVERY_WAY)
def test_models_of_mixed_dtypes_are_pruned_as_in_one_process(world, way, size, ties):
    world.run(tasks.prune_model, way, size, None, ties, 0.6, {})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_pruned_as_in_one_process(world, dtype):
    world.run(tasks.prune_model, "both", 4, dtype, "none", 0.85, {})


@pytest.mark.parametrize("method", METHODS)
def test_every_method_prunes_as_in_one_process(world, method):
    world.run(tasks.prune_model, "fsdp", 3, None, "ternary", 0.7, {"method": method})


@pytest.mark.parametrize("sparsity", [0.0, 1.0, 0.999])
def test_the_ends_are_as_in_one_process(world, sparsity):
    world.run(tasks.prune_model, "fsdp", 4, None, "ternary", sparsity, {})


def test_densities_are_kept_to_as_in_one_process(world):
    options = {"min_density": {"*1*": 0.7}, "densities": {"layers.0.weight": 0.31}}
    world.run(tasks.prune_model, "tensor_parallel", 3, None, "constant", 0.6, options)


@pytest.mark.parametrize("shape", [(2,), (3,), (2, 2)], ids=str)
def test_any_weights_placed_in_any_way_are_pruned_as_in_one_process_in_two_rounds(world, shape):
    world.run(tasks.prune_mappings, shape, 1, 12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("shape", [(2,), (3,), (4,), (2, 2)], ids=str)
def test_many_weights_placed_in_any_way_are_pruned_as_in_one_process(world, shape, seed):
    world.run(tasks.prune_mappings, shape, seed, 60)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("way", "size"), EVERY_WAY)
def test_every_combination_is_pruned_as_in_one_process(world, way, size, dtype, method):
    for ties in ("none", "ternary", "constant"):
        world.run(tasks.prune_model, way, size, dtype, ties, 0.6, {"method": method})


@pytest.mark.parametrize(("score", "evidence"), [("random", "seed"), ("snip", "spread"), ("snip", "whole")])
@pytest.mark.parametrize(("way", "size"), [("fsdp", 3), ("both", 4)])
def test_scores_of_single_weights_are_as_in_one_process(world, way, size, score, evidence):
    world.run(tasks.score_model, way, size, score, evidence)


def test_gradients_that_a_backward_pass_leaves_are_evidence(world):
    world.run(tasks.snip_of_gradients, 3)


@pytest.mark.parametrize("score", ["wanda", tasks.distance], ids=str)
def test_wanda_and_functions_of_ones_own_are_as_in_one_process(world, score):
    world.run(tasks.score_model, "tensor_parallel", 2, score, "whole")


@pytest.mark.parametrize("pattern", ["row", "2:4"])
@pytest.mark.parametrize(("way", "size"), [("fsdp", 3), ("hybrid", 4)])
def test_patterns_are_as_in_one_process_where_each_has_whole_rows(world, way, size, pattern):
    world.run(tasks.patterns, way, size, pattern)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_experts_of_a_divided_stack_are_pruned_as_in_one_process(world, axis, tmp_path):
    world.run(tasks.experts, 2, axis, str(tmp_path))


def test_what_fsdp_holds_whole_after_a_forward_is_pruned_in_its_shards(world):
    world.run(tasks.after_a_forward, 2)


@pytest.mark.parametrize(("way", "size"), [("fsdp", 4), ("both", 4), ("replicated", 2)])
def test_rounds_that_rewind_prune_as_in_one_process(world, way, size):
    world.run(tasks.rounds, way, size)
