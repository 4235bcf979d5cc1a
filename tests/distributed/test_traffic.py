"""How much the processes send: little, and for 16-bit weights the same however many there are."""

import pytest
import torch

import spread_tasks as tasks

METHODS = ("lamp", "global", "uniform")


def sent(world, size, shape, dtype, method="lamp", placement="rows"):
    return max(world.run(tasks.traffic, size, shape, dtype, method, placement))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_layers_send_no_more_however_large_they_are(world, dtype, method):
    small, large = (sent(world, 2, (rows, 512), dtype, method) for rows in (1024, 8192))
    assert large < 1.35 * small + 4096  # eight times the weights reach a few more magnitudes
    assert large <= 2 * 4 * (1 << 15) + 8192


@pytest.mark.parametrize("placement", ["rows", "columns"])
@pytest.mark.parametrize("method", METHODS)
def test_32_bit_layers_that_are_small_send_less_than_a_megabyte(world, method, placement):
    assert sent(world, 4, (256, 512), torch.float32, method, placement) < 1 << 20


def test_replicas_send_next_to_nothing(world):
    assert sent(world, 4, (256, 512), torch.float32, placement="replicas") < 2048


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("method", METHODS)
def test_32_bit_layers_of_16_million_send_less_than_one_percent_of_their_bytes(world, method, size):
    assert sent(world, size, (4096, 4096), torch.float32, method) < 0.01 * 4 * 4096 * 4096
