"""Packing at size: memory that does not grow with a tensor, and bits for each weight of a whole model."""

import subprocess
import sys

import pytest
import torch

import lamplighter as ll
from lamplighter.benchmarking.packing import write_model
from lamplighter.checkpoint.packed_codec import CHUNK, raw
from lamplighter.checkpoint.writing import ShardWriter

MEGABYTE = 1 << 20

# Run in a new process: what has been loaded and used before would hide what comes on top.
CODE = """
import sys, torch
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
before = peak()
import lamplighter as ll
work, *paths = sys.argv[1:]
{"pack": ll.pack, "unpack": ll.unpack, "verify": ll.verify}[work](*paths)
print(peak() - before)
"""


def extra_memory(work, *paths):
    """How far the peak of a new process rises above what `import torch` takes."""
    command = [sys.executable, "-c", CODE, work, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250)
    return int(done.stdout)


def write_sparse(path, size, sparsity=0.5):
    """One tensor of so many bytes."""
    generator = torch.Generator().manual_seed(0)
    with ShardWriter(path, [("w", "BF16", (size // 2,))], {}) as writer:
        for start in range(0, size // 2, CHUNK):
            count = min(CHUNK, size // 2 - start)
            weights = torch.randn(count, generator=generator).bfloat16()
            weights[torch.rand(count, generator=generator) < sparsity] = 0
            writer.write_at("w", 2 * start, raw(weights.view(torch.int16)))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak")
def test_memory_stays_small_with_a_tensor_of_500_megabytes(tmp_path):
    dense, packed, back = (tmp_path / f"{name}.safetensors" for name in "apb")
    write_sparse(dense, 500 * MEGABYTE)
    taken = {
        "pack": extra_memory("pack", dense, packed),
        "unpack": extra_memory("unpack", packed, back),
        "verify": extra_memory("verify", packed, dense),
    }
    assert max(taken.values()) < 250 * MEGABYTE, taken


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak")
def test_memory_stays_small_with_ten_thousand_experts(tmp_path):
    dense, packed, back = (tmp_path / f"{name}.safetensors" for name in "apb")
    described = [(f"layers.0.experts.{i}.down_proj.weight", "BF16", (32, 96)) for i in range(10_000)]
    weight = torch.randn(32, 96).bfloat16()
    weight[torch.rand(32, 96) < 0.9] = 0
    with ShardWriter(dense, described, {}) as writer:
        for name, _, _ in described:
            writer.write_at(name, 0, raw(weight.view(-1).view(torch.int16)))
    for work, paths in (("pack", (dense, packed)), ("unpack", (packed, back)), ("verify", (packed, dense))):
        assert extra_memory(work, *paths) < 250 * MEGABYTE, work
    assert back.read_bytes() == dense.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("sparsity", [0.5, 0.9, 0.99])
def test_a_pruned_language_model_takes_the_bits_it_should(tmp_path, sparsity):
    model, pruned, packed = (tmp_path / f"{name}.safetensors" for name in ("model", "pruned", "packed"))
    write_model(model, 0.4)
    report = ll.prune_checkpoint(model, pruned, sparsity=sparsity)
    ll.pack(pruned, packed)
    counted = {layer.name for layer in report.layers}
    rest = sum(entry.nbytes for name, entry in ll.Checkpoint(pruned).entries.items() if name not in counted)
    bits = 8 * (packed.stat().st_size - rest) / report.total
    assert bits == pytest.approx(16 * (1 - sparsity) + 1, rel=0.02)
