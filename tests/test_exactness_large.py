"""Budgets and masks of layers with up to a million entries, each answer certified in exact arithmetic."""

import numpy as np
import pytest
import torch

import certificates
import lamplighter as ll
import oracles
from strategies import DTYPES, bits

pytestmark = pytest.mark.filterwarnings("ignore::lamplighter.LamplighterWarning")


def normal(count, generator):
    return torch.randn(count, generator=generator)


def near_constant(count, generator):
    return 1 + 1e-6 * torch.randn(count, generator=generator)


def ternary(count, generator):
    return torch.randint(-1, 2, (count,), generator=generator).float()


def heavy_tailed(count, generator):
    return torch.empty(count).cauchy_(generator=generator)


def any_bits(count, generator):
    """Log-uniform over the whole range of float32, subnormals included."""
    patterns = torch.randint(0, 0x7F800000, (count,), generator=generator, dtype=torch.int32)
    signs = torch.randint(0, 2, (count,), generator=generator, dtype=torch.int32) << 31
    return (patterns | signs).view(torch.float32)


def one_bin(count, generator):
    """All in one bin of the top 15 bits of the magnitude; the low bits differ."""
    low = torch.randint(0, 1 << 16, (count,), generator=generator, dtype=torch.int32)
    return (0x3F800000 | low).view(torch.float32)


def one_bin_with_ties(count, generator):
    low = torch.randint(0, 5, (count,), generator=generator, dtype=torch.int32)
    return (0x3F800000 | low).view(torch.float32)


def rounded(count, generator):
    return (8 * torch.randn(count, generator=generator)).round() / 8


def constant(count, generator):
    return torch.full((count,), -0.3)


def indistinguishable(count, generator):
    """Small entries whose LAMP scores float64 cannot tell apart, below as many of the energy 2^75 each."""
    huge = torch.randint(128, 256, (count // 2,), generator=generator) * 2**30
    small = torch.randint(16, 24, (count - count // 2,), generator=generator)
    return torch.cat([huge.flip(0), small]).float()


def alike(*kinds, count=100_003):
    return [(kind, count) for kind in kinds]


MIXES = {
    "normal layers": [(normal, 120_000), (normal, 70_001), (normal, 513)],
    "near-constant beside normal": [(near_constant, 200_000), (normal, 200_000)],
    "near-constant alone": [(near_constant, 150_000), (near_constant, 149_999)],
    "ternary": [(ternary, 100_000), (ternary, 250_000), (normal, 50_000)],
    "heavy-tailed": [(heavy_tailed, 200_000), (heavy_tailed, 90_000), (normal, 60_000)],
    "one huge layer beside tiny ones": [
        (normal, 1_000_003),
        (normal, 7),
        (heavy_tailed, 3),
        (constant, 1),
        (normal, 64),
    ],
    "the whole range": alike(any_bits, any_bits, any_bits),
    "one bin": alike(one_bin, one_bin, normal),
    "one bin with ties": alike(one_bin_with_ties, one_bin_with_ties, one_bin),
    "constants": [(constant, 100_000), (constant, 100_000), (constant, 99_999), (near_constant, 100_000)],
    "everything": alike(
        *(normal, near_constant, ternary, heavy_tailed, any_bits, one_bin, rounded, constant), count=40_009
    ),
}


def weights_of(mix, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        f"layers.{place}.{kind.__name__}": kind(count, generator).to(dtype).view(1, -1)
        for place, (kind, count) in enumerate(mix)
    }


def spread(total, layers):
    """Numbers of weights to keep, over the whole range and at its ends."""
    rough = [round(total * density) for density in (0.999, 0.8, 0.5, 0.2, 0.04, 0.01, 0.0012)]
    return [total, total - 1, *rough, layers + 1, layers, layers - 1, 1, 0]


def certify(weights, keep, method, alive=None):
    total = sum(weight.numel() for weight in weights.values())
    before = {name: weight.clone() for name, weight in weights.items()}
    sparsity = (total - keep) / total
    assert oracles.keep_of(total, sparsity) == keep
    budgets = ll.allocate(weights, sparsity, method, masks=alive)
    certificates.assert_budgets(before, budgets, keep, method, alive)
    pruned = {name: weight.clone() for name, weight in weights.items()}
    masks = ll.prune(pruned, sparsity, method, masks=alive)
    for name, weight in before.items():
        top = certificates.top_entries(weight, budgets[name], alive and alive[name])
        assert np.array_equal(masks[name].flatten().numpy(), top), name
        assert torch.equal(bits(pruned[name]), torch.where(masks[name], bits(weight), 0)), name
    return masks


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_lamp_budgets_are_certified(mix):
    weights = weights_of(mix)
    total = sum(weight.numel() for weight in weights.values())
    for keep in spread(total, len(weights)):
        budgets = ll.allocate(weights, (total - keep) / total, "lamp")
        certificates.assert_budgets(weights, budgets, keep, "lamp")


@pytest.mark.parametrize("method", ["lamp", "global"])
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_masks_are_certified(mix, method):
    weights = weights_of(mix, seed=1)
    total = sum(weight.numel() for weight in weights.values())
    for keep in (total * 3 // 7, total // 90):
        certify(weights, keep, method)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_thousands_of_scores_that_float64_cannot_tell_apart(dtype):
    first = indistinguishable(20_000, torch.Generator().manual_seed(0))
    # The same energy but for a unit here and there, above the cut: the exact order of the layers' entries changes.
    weights = {f"layers.{place}": first.to(dtype, copy=True).view(100, 200) for place in range(4)}
    weights["layers.1"][-1, :7] = 24
    weights["layers.2"][-1, 7] = 25
    weights["layers.3"][0, :3] = weights["layers.3"][0, 3:6]
    for keep in (41_000, 53_003, 71_001, 79_998):
        certify(weights, keep, "lamp")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("method", ["lamp", "global"])
def test_other_dtypes_are_certified(dtype, method):
    kinds = (normal, near_constant, ternary, heavy_tailed, rounded, constant, normal)
    weights = {name: weight.clamp(-6e4, 6e4) for name, weight in weights_of(alike(*kinds, count=30_011), dtype).items()}
    for keep in (200_000, 60_000, 5_000, 7):
        certify(weights, keep, method)


@pytest.mark.parametrize("method", ["lamp", "global"])
def test_mixed_dtypes_are_certified(method):
    mix = [(normal, 50_000), (normal, 50_000), (heavy_tailed, 50_000), (rounded, 50_000), (rounded, 50_000)]
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.float32)
    weights = weights_of(mix, seed=2)
    weights = {name: weight.to(dtype) for (name, weight), dtype in zip(weights.items(), dtypes, strict=True)}
    for keep in (180_000, 25_000, 900):
        certify(weights, keep, method)


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_rounds_are_certified(mix):
    weights, alive = weights_of(mix, seed=3), None
    total = sum(weight.numel() for weight in weights.values())
    for density, method in ((0.6, "global"), (0.3, "lamp"), (0.02, "lamp")):
        alive = certify(weights, round(total * density), method, alive)


def test_identical_layers_tie_and_the_earlier_ones_win():
    generator = torch.Generator().manual_seed(4)
    layer = normal(60_000, generator).view(300, 200)
    for dtype in (torch.float32, torch.bfloat16):
        weights = {f"layers.{place}.weight": layer.to(dtype, copy=True) for place in range(5)}
        for keep in (123_457, 5_003):
            budgets = ll.allocate(weights, (300_000 - keep) / 300_000)
            certificates.assert_budgets(weights, budgets, keep, "lamp")
            assert max(budgets.values()) - min(budgets.values()) <= 1
            assert list(budgets.values()) == sorted(budgets.values(), reverse=True)


def test_the_same_weights_in_another_memory_format_keep_the_same():
    generator = torch.Generator().manual_seed(5)
    filters = rounded(64 * 32 * 9, generator).view(64, 32, 3, 3)
    matrix = rounded(90_000, generator).view(300, 300)
    plain = {"conv": filters.clone(), "line": matrix.clone()}
    other = {"conv": filters.clone(memory_format=torch.channels_last), "line": matrix.t().contiguous().t()}
    for sparsity in (0.5, 0.97):
        assert ll.prune(plain, sparsity) == ll.prune(other, sparsity)
        assert all(torch.equal(bits(plain[name]), bits(other[name])) for name in plain)
    assert other["conv"].is_contiguous(memory_format=torch.channels_last)


def test_the_number_of_threads_does_not_matter():
    threads = torch.get_num_threads()
    dtypes = (torch.float32, torch.bfloat16)
    mix = [(heavy_tailed, 200_000), (ternary, 4_400_000), (normal, 90_000)]
    found = {}
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            found[number] = [ll.prune(weights_of(mix, dtype, seed=6), 0.73) for dtype in dtypes]
    finally:
        torch.set_num_threads(threads)
    assert found[1] == found[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [ternary, one_bin_with_ties, near_constant])
def test_layers_so_large_that_they_are_read_in_pieces(kind, dtype):
    generator = torch.Generator().manual_seed(7)
    weights = {"large": kind(4_300_013, generator).to(dtype), "small": kind(501, generator).to(dtype)}
    first = certify(weights, 3_100_001, "lamp")
    certify(weights, 1_000_003, "lamp", first)


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_than_a_million_equal_entries_above_the_cut(dtype):
    def layer(count):
        return torch.cat([torch.full((count,), 2.0), torch.ones(500)]).to(dtype).view(1, -1)

    weights = {"a": layer(2**20 - 1), "b": layer(2**20 + 2), "c": layer(2**20)}
    for ones in (1, 13, 700):
        certify(weights, 3 * 2**20 + 1 + ones, "lamp")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_masks_are_certified_for_many_seeds(mix, seed):
    weights = weights_of(mix, seed=100 + seed)
    total = sum(weight.numel() for weight in weights.values())
    draw = np.random.default_rng(seed)
    for keep in (int(draw.integers(0, total + 1)), int(total ** draw.random())):
        certify(weights, keep, "lamp")
        certify(weights, keep, "global")
