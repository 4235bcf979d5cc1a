"""Masks of layers that lie in several processes: looked at, saved, loaded elsewhere, held."""

import pytest

import spread_tasks as tasks


def test_masks_are_distributed_tensors_and_counts_are_of_whole_layers(world):
    world.run(tasks.look_at, 3)


@pytest.mark.parametrize(
    ("way", "size", "other_way", "other_size"),
    [
        ("fsdp", 3, "both", 4),
        ("both", 4, "tensor_parallel", 2),
        ("hybrid", 4, "fsdp", 1),
        ("tensor_parallel", 3, "fsdp", 4),
    ],
)
def test_the_file_is_that_of_one_process_and_fits_any_other_placement(
    world, tmp_path, way, size, other_way, other_size
):
    world.run(tasks.save_and_load, way, size, other_way, other_size, str(tmp_path))
    assert len(list(tmp_path.glob("spread*"))) == 1
    assert list(tmp_path.glob(".*")) == []


def test_masks_in_other_parts_than_the_weights_are_refused(world):
    said = world.run(tasks.masks_of_other_parts, 4)
    assert all("lies in several processes, in other parts than its weights do" in each for each in said)


@pytest.mark.parametrize(
    ("way", "size"), [("fsdp", 2), ("fsdp", 3), ("tensor_parallel", 2), ("both", 4), ("hybrid", 4), ("replicated", 2)]
)
def test_pruned_weights_stay_zero_while_training_without_any_message_of_ours(world, way, size):
    world.run(tasks.train, way, size, 3)
