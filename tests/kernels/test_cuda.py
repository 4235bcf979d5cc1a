"""The CUDA kernels on a GPU: the readings of the plain operations, for many runs at once."""

import pytest
import torch

import lamplighter as ll
from lamplighter import bits
from lamplighter.kernels import Run, anywhere, cuda, kernels_for
from lamplighter.kernels.cuda import TILE, TOGETHER

pytestmark = pytest.mark.gpu
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SIZES = (1, 7, 8, 9, 2000, TILE, TILE + 1, 2 * TILE + 77, 3_000_001)


@pytest.fixture(autouse=True)
def _cuda(monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setattr(cuda, "USED", True)


def runs_of(dtype, sizes, kind, *, masked):
    """Runs on the GPU, some of which begin at an odd place in memory, some with masks."""
    generator = torch.Generator().manual_seed(0)
    runs = []
    for number, size in enumerate(sizes):
        values = torch.randn(size + 3, generator=generator)
        if kind == "ternary":
            values = values.sign() * (values.abs() > 0.5)
        elif kind == "constant":
            values = torch.full_like(values, 0.25)
        entries = values.to(dtype).cuda()[number % 4 :][:size]
        alive = bits.pack((torch.rand(size, generator=generator) < 0.7).cuda()) if masked and number % 2 else None
        runs.append(Run(entries, alive))
    return runs


def on_cpu(run):
    return Run(run.entries.cpu(), None if run.alive is None else run.alive.cpu())


def test_these_kernels_are_the_ones_that_are_used():
    for dtype in DTYPES:
        assert kernels_for(Run(torch.ones(5, dtype=dtype, device="cuda"))) is cuda
    assert kernels_for(Run(torch.ones(5, dtype=torch.float64, device="cuda"))) is anywhere


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["normal", "ternary", "constant"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_runs_are_counted_at_once(dtype, kind, masked):
    runs = runs_of(dtype, SIZES, kind, masked=masked)
    for run, found in zip(runs, cuda.count_many(runs), strict=True):
        assert found == anywhere.count(on_cpu(run))


def test_more_runs_than_are_counted_together():
    runs = runs_of(torch.bfloat16, [50 + number for number in range(2 * TOGETHER + 5)], "normal", masked=True)
    for run, found in zip(runs, cuda.count_many(runs), strict=True):
        assert found == anywhere.count(on_cpu(run))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("high", [0.51, 0.75])
def test_windows_are_those_of_the_plain_operations(high, masked):
    runs = runs_of(torch.float32, SIZES, "normal", masked=masked)
    codes = tuple(int(torch.tensor(value).view(torch.int32)) for value in (0.5, high))
    for run, found in zip(runs, cuda.window_many(runs, [codes] * len(runs)), strict=True):
        expected, above = anywhere.window(on_cpu(run), *codes, energy=True)
        if found is None:
            assert expected.size > max(1 << 16, run.entries.numel() // 32)
            continue
        assert found[0] == expected
        assert found[1] == pytest.approx(above, rel=1e-12)


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", ["normal", "ternary", "constant"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_entries_are_selected(dtype, kind, share, erase):
    runs = runs_of(dtype, SIZES, kind, masked=True)
    cuts = []
    for run in runs:
        codes = run.entries.view(run.form.bits) & run.form.code_mask
        code = int(codes.sort().values[len(codes) // 2])
        equal = codes == code
        if run.alive is not None:
            equal &= bits.unpack(run.alive, equal.shape)
        cuts.append((code, int(share * int(equal.sum()))))
    others = [on_cpu(run) for run in runs]
    masks = [torch.full(((len(run.entries) + 7) // 8,), 0xFF, dtype=torch.uint8, device="cuda") for run in runs]
    cuda.select_many(runs, cuts, masks, erase=erase)
    for run, other, (code, drop), mask in zip(runs, others, cuts, masks, strict=True):
        expected = torch.empty_like(mask.cpu())
        anywhere.select(other, code, drop, expected, erase=erase)
        assert torch.equal(mask.cpu(), expected)
        assert torch.equal(run.entries.cpu().view(run.form.bits), other.entries.view(run.form.bits))


def test_a_tie_is_cut_at_its_place_among_a_hundred_million_equals():
    entries = torch.full((100_000_003,), -2.0, dtype=torch.bfloat16, device="cuda")
    mask = torch.empty((len(entries) + 7) // 8, dtype=torch.uint8, device="cuda")
    code = int(torch.tensor(2.0, dtype=torch.bfloat16).view(torch.int16))
    cuda.select(Run(entries), code, 77_777_777, mask, erase=True)
    assert int(bits.unpack(mask, entries.shape).long().sum()) == len(entries) - 77_777_777
    assert not entries[:77_777_777].any()
    assert bool((entries[77_777_777:] == -2).all())


@pytest.mark.parametrize("memory", ["contiguous", "channels_last", "transposed"])
def test_pruning_on_the_gpu_is_pruning_on_the_cpu_whatever_the_memory(memory):
    generator = torch.Generator().manual_seed(1)
    layers = {
        "conv": torch.randn(16, 8, 3, 3, generator=generator),
        "wide": torch.randn(300, 500, generator=generator).bfloat16(),
        "long": torch.randn(900, 400, generator=generator),
    }
    here = {name: tensor.cuda() for name, tensor in layers.items()}
    if memory == "channels_last":
        here["conv"] = here["conv"].contiguous(memory_format=torch.channels_last)
    elif memory == "transposed":
        here["wide"] = here["wide"].t().contiguous().t()
    for sparsity in (0.3, 0.9):
        masks = ll.prune(layers, sparsity)
        found = ll.prune(here, sparsity)
        assert all(torch.equal(found[name].cpu(), masks[name]) for name in layers)
        assert all(torch.equal(here[name].cpu(), layers[name]) for name in layers)
