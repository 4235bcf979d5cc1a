"""Every kind of kernel gives the same readings, whatever the chunks, dead entries and dtypes."""

import numpy as np
import pytest
import torch

from lamplighter import bits
from lamplighter.formats import FORMATS, whole
from lamplighter.kernels import Run, anywhere, cpu
from lamplighter.spectrum import spectrum_of

KERNELS = [
    pytest.param(cpu, "cpu", id="cpu"),
    pytest.param(anywhere, "cpu", id="anywhere"),
    pytest.param(anywhere, "cuda", id="anywhere-cuda", marks=pytest.mark.gpu),
]
DTYPES = list(FORMATS)
SIZE = 1000


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks so small that a run has many, and the last is not whole."""
    monkeypatch.setattr(cpu, "CHUNK", 64)
    monkeypatch.setattr(cpu, "COUNT_CHUNK", 160)
    monkeypatch.setattr(cpu, "COLLECT", 40)
    monkeypatch.setattr(cpu, "SORT", 0)
    monkeypatch.setattr(cpu, "EXACT", 64)
    monkeypatch.setattr(anywhere, "CHUNK", 64)


def entries(dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(SIZE, generator=generator, dtype=torch.float64)
    tensor[::7] = 0
    tensor[1::11] = -0.0
    tensor[2::13] = 0.75
    return tensor.to(dtype).to(device)


def alive_bits(device: str) -> torch.Tensor:
    return torch.rand(SIZE, generator=torch.Generator().manual_seed(9)).gt(0.3).to(device)


def codes_of(tensor: torch.Tensor) -> np.ndarray:
    form = FORMATS[tensor.dtype]
    return tensor.cpu().view(form.bits).numpy().astype(np.int64) & form.code_mask


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kernels", "device"), KERNELS)
def test_count_is_the_spectrum_of_the_live_entries(kernels, device, dtype, masked):
    tensor, alive = entries(dtype, device), alive_bits(device)
    run = Run(tensor, bits.pack(alive) if masked else None)
    assert kernels.count(run) == spectrum_of(tensor[alive] if masked else tensor)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kernels", "device"), KERNELS)
def test_a_window_is_exact_and_so_is_the_energy_above(kernels, device, dtype, masked):
    tensor, alive = entries(dtype, device), alive_bits(device)
    run = Run(tensor, bits.pack(alive) if masked else None)
    form, codes = FORMATS[dtype], codes_of(tensor[alive] if masked else tensor)
    low, high = (int(codes_of(torch.tensor([x], dtype=dtype))[0]) for x in (0.5, 1.0))
    window, energy = kernels.window(run, low, high, energy=dtype == torch.float32)
    inside = codes[(codes >= low) & (codes < high)]
    keys, counts = np.unique(inside, return_counts=True)
    assert np.array_equal(window.keys, keys)
    assert np.array_equal(window.counts, counts)
    exact = sum(whole(int(c), form) ** 2 for c in codes if c >= high)
    assert kernels.energy(run, high) == exact
    if dtype == torch.float32:
        assert energy == pytest.approx(float(exact) * 2.0 ** (2 * form.unit), rel=1e-13)


def test_exact_energy_holds_over_the_whole_range_of_exponents():
    form = FORMATS[torch.float32]
    codes = np.random.default_rng(0).integers(1, form.infinity, 5000)
    assert cpu.exact_energy(codes, form) == sum(whole(int(c), form) ** 2 for c in codes)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("drop", [0, 1, 20, 63, 64, 65])
@pytest.mark.parametrize(("kernels", "device"), KERNELS)
def test_select_drops_the_first_equals(kernels, device, drop, dtype, masked):
    tensor, alive = entries(dtype, device), alive_bits(device)
    before = tensor.clone()
    run = Run(tensor, bits.pack(alive) if masked else None)
    code = int(codes_of(torch.tensor([0.75], dtype=dtype))[0])
    codes, living = codes_of(tensor), alive.cpu().numpy() if masked else np.ones(SIZE, bool)
    equal = np.flatnonzero((codes == code) & living)
    expected = (codes >= code) & living
    expected[equal[:drop]] = False
    packed = torch.zeros(SIZE // 8, dtype=torch.uint8, device=device)
    kernels.select(run, code, drop, packed, erase=True)
    kept = torch.from_numpy(expected).to(device)
    assert torch.equal(bits.unpack(packed, (SIZE,)), kept)
    whole_bits = FORMATS[dtype].bits
    assert torch.equal(tensor.view(whole_bits), torch.where(kept, before.view(whole_bits), 0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kernels", "device"), KERNELS)
def test_erase_leaves_positive_zeros_and_changes_nothing_else(kernels, device, dtype):
    tensor, alive = entries(dtype, device), alive_bits(device)
    before = tensor.clone()
    kernels.erase(Run(tensor, bits.pack(alive)))
    whole_bits = FORMATS[dtype].bits
    assert torch.equal(tensor.view(whole_bits), torch.where(alive, before.view(whole_bits), 0))


@pytest.mark.parametrize(("kernels", "device"), KERNELS)
def test_an_empty_run_is_read(kernels, device):
    run = Run(torch.empty(0, device=device))
    assert kernels.count(run).size == 0
    assert kernels.energy(run, 1) == 0
    assert kernels.window(run, 1, 5, energy=True)[0].size == 0


@pytest.mark.parametrize("context", [torch.inference_mode, lambda: torch.device("meta")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_callers_mode_and_default_device_leave_nothing_behind(context, dtype):
    def readings():
        tensor = entries(dtype)
        packed = torch.zeros(SIZE // 8, dtype=torch.uint8)
        return tensor, packed

    low, high = (int(codes_of(torch.tensor([x], dtype=dtype))[0]) for x in (0.5, 0.75))
    expected, packed = readings()
    cpu.select(Run(expected), high, 3, packed, erase=True)
    window = cpu.window(Run(entries(dtype)), low, high, energy=True)
    cpu._rooms.by_use.clear()
    run, other = readings()
    with context():
        cpu.count(Run(run))
        cpu.window(Run(run), low, high, energy=True)
        cpu.select(Run(run), high, 3, other, erase=False)
    assert cpu.window(Run(run), low, high, energy=True) == window
    cpu.select(Run(run), high, 3, other, erase=True)
    assert torch.equal(other, packed)
    assert torch.equal(run, expected)
