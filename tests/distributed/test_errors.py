"""Processes that disagree, break or end: all others end with an error too."""

import pytest

import spread_tasks as tasks
from worlds import world_of


@pytest.mark.parametrize(
    ("about", "heading"),
    [
        ("sparsity", "the sparsity"),
        ("method", "the method"),
        ("unknown method", "the method"),
        ("pattern", "the pattern"),
        ("densities", "the densities"),
        ("shapes", "the shapes of the layers"),
        ("dtypes", "the dtypes of the layers"),
        ("layers", "which layers count"),
    ],
)
def test_processes_that_disagree_all_get_an_error_that_says_what_about(world, about, heading):
    said = world.run(tasks.disagree, 3, about)[:3]
    assert all(each.startswith("LamplighterError") and f"disagree about {heading};" in each for each in said), said


@pytest.mark.parametrize(
    ("about", "own"), [("nothing", "matches no parameter"), ("masks", "masks is a int, expected Masks")]
)
def test_where_one_process_is_asked_nonsense_the_others_do_not_wait_for_it(world, about, own):
    said = world.run(tasks.disagree, 3, about)[:3]
    assert own in said[2]
    assert all("another of the processes that share this model cannot go on" in each for each in said[:2]), said


def test_nan_in_one_shard_is_an_error_everywhere(world):
    said = world.run(tasks.broken_on_one, 3, "nan")[:3]
    assert all("NaN or infinite values in layers.0.weight (1)" in each for each in said), said


def test_replicas_that_differ_are_an_error_everywhere(world):
    said = world.run(tasks.broken_on_one, 4, "replicas")
    assert all("different weights of layers.0.weight, which should be replicas" in each for each in said), said


def test_a_score_that_fails_in_one_process_ends_all(world):
    said = world.run(tasks.broken_on_one, 3, "function")[:3]
    assert "nothing of the kind" in said[1]
    assert all("another of the processes" in said[rank] for rank in (0, 2)), said


def test_a_score_that_gathers_is_refused(world):
    said = world.run(tasks.broken_on_one, 2, "gathering")[:2]
    assert all("the importance is a Tensor, expected a DTensor placed as the weight" in each for each in said), said


def test_patterns_that_need_rows_of_several_processes_are_refused(world):
    world.start(tasks.patterns, "fsdp_columns", 2, "row")
    said = world.outcomes()[:2]
    assert all(not fine and "needs whole rows of layers.0.weight" in text for fine, text in said)


def test_when_a_process_ends_the_others_end_with_an_error_soon():
    with world_of(3) as world:
        world.start(tasks.lose_one, tasks.exiting)
        said = world.outcomes()
    assert said[1] == (False, "the process has died")
    for fine, (text, seconds) in (said[0], said[2]):
        assert fine
        assert "LostProcessError" in text
        assert seconds < 20


@pytest.mark.slow
def test_when_a_process_hangs_the_others_end_with_an_error_after_the_timeout():
    with world_of(2, longest=4) as world:
        world.start(tasks.lose_one, tasks.sleeping)
        (fine, (text, seconds)), _ = world.outcomes()
    assert fine
    assert "LostProcessError" in text
    assert 3 < seconds < 8
