"""The CUDA kernels, run on a CPU: the same source, compiled as C++ with a thread for each of a block's."""

import ctypes
import shutil
import subprocess
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch

from lamplighter import bits
from lamplighter.kernels import Run, anywhere
from lamplighter.kernels.cuda import KEYS, TILE, UNIT

HERE = Path(__file__).parent
SOURCE = Path(anywhere.__file__).with_name("readings.cu")
THREADS = 64
LAUNCHERS = """
extern "C" void run_count(int blocks, const Run* r, const u64* f, int n, u32* c, u64* z) {
    launch(blocks, THREADS, [=] { count_runs(r, f, n, c, z); });
}
extern "C" void run_select(int blocks, const Run* r, const Cut* c, const int* f, int n, u64* s, int* t, int erase) {
    launch(blocks, THREADS, [=] { select_runs(r, c, f, n, s, t, erase); });
}
#if WIDTH == 32
extern "C" void run_window(
    int blocks, const Run* r, const u64* f, int n, const Window* w, u32* found, u64* taken, double* e
) {
    launch(blocks, THREADS, [=] { search_windows(r, f, n, w, found, taken, e); });
}
#endif
"""
DTYPES = {torch.bfloat16: (16, 0), torch.float16: (16, 0), torch.float32: (32, 16)}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Compiles the kernels for an entry's width, once each."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile with")
    folder, made = tmp_path_factory.mktemp("kernels"), {}

    def build(dtype):
        width, shift = DTYPES[dtype]
        if width not in made:
            text = SOURCE.read_text("utf-8").replace("extern __shared__ u32 own[];", "u32* own = dynamic_shared;")
            assert "dynamic_shared" in text
            path = folder / f"readings{width}.cpp"
            path.write_text('#include "on_host.h"\n' + text + LAUNCHERS, "utf-8")
            target = path.with_suffix(".so")
            flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-w", "-pthread", f"-I{HERE}"]
            defined = [f"-DWIDTH={width}", f"-DSHIFT={shift}", f"-DTHREADS={THREADS}"]
            subprocess.run([compiler, *flags, *defined, str(path), "-o", str(target)], check=True)
            made[width] = ctypes.CDLL(str(target))
        return made[width]

    return build


def example(dtype, sizes, *, kind, masked, seed=0):
    """Runs of the given sizes, some of them beginning at an odd place in memory, some with masks."""
    generator = torch.Generator().manual_seed(seed)
    runs = []
    for number, size in enumerate(sizes):
        values = torch.randn(size + 3, generator=generator)
        if kind == "ternary":
            values = values.sign() * (values.abs() > 0.5)
        entries = values.to(dtype)[number % 4 :][:size]
        alive = bits.pack(torch.rand(size, generator=generator) < 0.7) if masked and number % 2 else None
        runs.append(Run(entries, alive))
    return runs


def address(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


def table(rows):
    return torch.from_numpy(np.array(rows, dtype=np.uint64).view(np.int64))


def line(runs):
    rows = [(r.entries.data_ptr(), 0 if r.alive is None else r.alive.data_ptr(), r.entries.numel()) for r in runs]
    return table(rows), table([0, *accumulate(-(-run.entries.numel() // UNIT) * UNIT for run in runs)])


cases = pytest.mark.parametrize(
    ("dtype", "kind", "masked"),
    [
        (torch.bfloat16, "normal", False),
        (torch.float16, "ternary", True),
        (torch.float32, "normal", True),
        (torch.float32, "ternary", False),
    ],
)
SIZES = (1, 7, 8, 9, 2000, TILE, TILE + 1, 2 * TILE + 77)


@cases
@pytest.mark.parametrize("blocks", [1, 3])
def test_counts_are_those_of_the_plain_operations(library, dtype, kind, masked, blocks):
    runs = example(dtype, SIZES, kind=kind, masked=masked)
    rows, first = line(runs)
    counts, zeros = torch.zeros(len(runs), KEYS, dtype=torch.int32), torch.zeros(len(runs), dtype=torch.int64)
    library(dtype).run_count(blocks, address(rows), address(first), len(runs), address(counts), address(zeros))
    for number, run in enumerate(runs):
        expected = anywhere.count(run)
        keys = counts[number].nonzero().view(-1)
        assert keys.tolist() == expected.keys.tolist()
        assert counts[number][keys].tolist() == expected.counts.tolist()
        assert int(zeros[number]) == expected.zeros


@pytest.mark.parametrize("capacity", [1 << 20, 10])
def test_windows_hold_the_codes_between_and_the_energy_above(library, capacity):
    runs = example(torch.float32, SIZES, kind="normal", masked=True)
    low, high = (int(torch.tensor(value).view(torch.int32)) for value in (0.5, 0.75))
    rows, first = line(runs)
    windows = table([(low | high << 32, number * capacity, capacity) for number in range(len(runs))])
    found = torch.zeros(len(runs) * capacity, dtype=torch.int32)
    taken, energy = torch.zeros(len(runs), dtype=torch.int64), torch.zeros(len(runs), dtype=torch.float64)
    arguments = (address(t) for t in (windows, found, taken, energy))
    library(torch.float32).run_window(3, address(rows), address(first), len(runs), *arguments)
    for number, run in enumerate(runs):
        expected, above = anywhere.window(run, low, high, energy=True)
        assert int(taken[number]) == expected.size
        assert float(energy[number]) == pytest.approx(above, rel=1e-12)
        if expected.size <= capacity:
            keys, counts = found[number * capacity :][: expected.size].unique(return_counts=True)
            assert keys.tolist() == expected.keys.tolist()
            assert counts.tolist() == expected.counts.tolist()


@cases
@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_same_entries_are_selected(library, dtype, kind, masked, erase, share):
    """Whatever part of the entries that equal the cut is dropped."""
    runs = example(dtype, SIZES, kind=kind, masked=masked)
    before = [run.entries.clone() for run in runs]
    cuts = []
    for run in runs:
        spectrum = anywhere.count(run)
        code = int(spectrum.keys[len(spectrum.keys) // 2]) << run.form.shift if len(spectrum.keys) else 1
        if run.form.shift:  # a code that is there
            codes = (run.entries.view(torch.int32) & run.form.code_mask).sort().values
            code = int(codes[len(codes) // 2])
        equal = (run.entries.view(run.form.bits) & run.form.code_mask) == code
        if run.alive is not None:
            equal &= bits.unpack(run.alive, equal.shape)
        cuts.append((code, int(share * int(equal.sum()))))
    expected = [torch.zeros((len(entries) + 7) // 8, dtype=torch.uint8) for entries in before]
    wanted = [entries.clone() for entries in before]
    for run, entries, (code, drop), packed in zip(runs, wanted, cuts, expected, strict=True):
        anywhere.select(Run(entries, run.alive), code, drop, packed, erase=erase)
    rows, _ = line(runs)
    masks = [torch.full_like(packed, 0xFF) for packed in expected]
    cut_rows = table([(code, drop, mask.data_ptr()) for (code, drop), mask in zip(cuts, masks, strict=True)])
    tiles = [0, *accumulate(-(-run.entries.numel() // TILE) for run in runs)]
    first_tile, ticket = torch.tensor(tiles, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    states = torch.zeros(tiles[-1], dtype=torch.int64)
    given = (address(t) for t in (rows, cut_rows, first_tile))
    library(dtype).run_select(2, *given, len(runs), address(states), address(ticket), int(erase))
    for run, entries, mask, packed in zip(runs, wanted, masks, expected, strict=True):
        assert torch.equal(mask, packed)
        assert torch.equal(run.entries.view(run.form.bits), entries.view(run.form.bits))


def test_the_constants_are_those_of_the_source():
    text = SOURCE.read_text("utf-8")
    assert f"TILE = {TILE};" in text
    assert f"UNIT = {UNIT};" in text
    assert KEYS == 1 << 15
    assert "KEYS = 1 << 15;" in text
