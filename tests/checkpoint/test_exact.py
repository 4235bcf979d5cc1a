"""What is pruned on its way from file to file equals what is pruned in memory, to the last bit."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import lamplighter as ll
from checkpoint.made import DTYPES, contents, counted, same_bits, save_sharded, weights
from lamplighter.checkpoint import passing
from lamplighter.checkpoint.checkpoint import Checkpoint
from strategies import keeps, models

METHODS = ("lamp", "global", "uniform", "uniform+", "er", "erk")
pytestmark = pytest.mark.filterwarnings("ignore:.*left without any weight")


def assert_same(tensors, path):
    found = Checkpoint(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert same_bits(found[name], tensor), name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("first", range(4))
def test_every_dtype_and_mixtures_of_them(tmp_path, method, first):
    for sparsity in (0.0, 0.31, 0.7) if method == "uniform+" else (0.0, 0.31, 0.9, 1.0):
        tensors = weights(first=first)
        save_file(tensors, tmp_path / "in.safetensors")
        masks = ll.prune(tensors, sparsity, method, include=counted(tensors))
        report = ll.prune_checkpoint(
            tmp_path / "in.safetensors", tmp_path / "out.safetensors", sparsity=sparsity, method=method, force=True
        )
        assert {layer.name: layer.kept for layer in report.layers} == masks.kept
        assert_same(tensors, tmp_path / "out.safetensors")
        assert load_file(tmp_path / "out.safetensors").keys() == tensors.keys()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), tensors=models(), method=st.sampled_from(METHODS), chunk=st.sampled_from([8, 24, 1 << 22]))
def test_whatever_the_weights(tmp_path, data, tensors, method, chunk):
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    total = sum(tensor.numel() for tensor in tensors.values())
    sparsity = 1 - data.draw(keeps(total)) / total
    save_file(tensors, tmp_path / "in.safetensors")
    try:
        ll.prune(tensors, sparsity, method, include=list(tensors))
    except ll.LamplighterError as error:
        expected = error.message
    else:
        expected = None
    options = {"sparsity": sparsity, "method": method, "include": list(tensors), "chunk": chunk, "threads": 2}
    if expected is not None:
        with pytest.raises(ll.LamplighterError) as caught:
            ll.prune_checkpoint(tmp_path / "in.safetensors", tmp_path / "out.safetensors", force=True, **options)
        assert caught.value.message == expected
        return
    ll.prune_checkpoint(tmp_path / "in.safetensors", tmp_path / "out.safetensors", force=True, **options)
    assert_same(tensors, tmp_path / "out.safetensors")


@pytest.mark.parametrize("pattern", ["2:4", "1:2", "row"])
@pytest.mark.parametrize("chunk", [8, 200, 1 << 22])
def test_patterns_in_slabs_of_any_size(tmp_path, monkeypatch, pattern, chunk):
    monkeypatch.setattr(passing, "PASSED", chunk)
    tensors = weights()
    if pattern != "row":
        tensors = {name: t for name, t in tensors.items() if "conv" not in name or pattern == "1:2"}
    save_file(tensors, tmp_path / "in.safetensors")
    ll.prune(tensors, 0.5, "uniform", include=counted(tensors), pattern=pattern)
    ll.prune_checkpoint(
        tmp_path / "in.safetensors", tmp_path / "out.safetensors", sparsity=0.5, method="uniform", pattern=pattern
    )
    assert_same(tensors, tmp_path / "out.safetensors")


@pytest.mark.parametrize("sparsity", [0.37, 0.813])
@pytest.mark.parametrize("chunk", [8, 200])
def test_rows_that_cannot_all_keep_the_same(tmp_path, monkeypatch, sparsity, chunk):
    monkeypatch.setattr(passing, "PASSED", chunk)
    tensors = {"a.weight": torch.randn(40, 17), "b.weight": torch.randn(33, 9).bfloat16()}
    save_file(tensors, tmp_path / "in.safetensors")
    masks = ll.prune(tensors, sparsity, pattern="row")
    assert any(len(set(mask.sum(1).tolist())) == 2 for mask in masks.values())
    ll.prune_checkpoint(tmp_path / "in.safetensors", tmp_path / "out.safetensors", sparsity=sparsity, pattern="row")
    assert_same(tensors, tmp_path / "out.safetensors")


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_threads_and_shards_make_no_difference(tmp_path, monkeypatch, dtype):
    tensors = {name: t.to(dtype) for name, t in weights().items() if t.is_floating_point()}
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    ll.prune(expected, 0.6, include=counted(expected))
    bytes_of_one = {}
    for shards, threads, chunk in itertools.product((1, 3), (1, 3), (8, 56, 1 << 22)):
        source = save_sharded(tmp_path / f"in-{shards}", tensors, shards)
        target = tmp_path / f"out-{shards}"
        ll.prune_checkpoint(source, target, sparsity=0.6, threads=threads, chunk=chunk, force=True)
        assert_same(expected, target)
        assert contents(target) == bytes_of_one.setdefault(shards, contents(target))


def test_ties_over_many_chunks_go_to_the_later_entries(tmp_path):
    tied = {"a.weight": torch.ones(64, 64).bfloat16(), "b.weight": -torch.ones(64, 64), "c.weight": torch.ones(64, 64)}
    save_file(tied, tmp_path / "in.safetensors")
    ll.prune(tied, 0.77, "global")
    for threads in (1, 2, 5):
        ll.prune_checkpoint(
            tmp_path / "in.safetensors",
            tmp_path / "out.safetensors",
            sparsity=0.77,
            method="global",
            chunk=64,
            threads=threads,
            force=True,
        )
        assert_same(tied, tmp_path / "out.safetensors")


def test_identical_float32_layers_are_settled_in_whole_numbers(tmp_path):
    layer = torch.randn(50, 40)
    tensors = {f"layers.{number}.weight": layer.clone() for number in range(4)}
    save_file(tensors, tmp_path / "in.safetensors")
    masks = ll.prune(tensors, 0.90123)
    assert len(set(masks.kept.values())) > 1
    ll.prune_checkpoint(tmp_path / "in.safetensors", tmp_path / "out.safetensors", sparsity=0.90123, chunk=1000)
    assert_same(tensors, tmp_path / "out.safetensors")


def test_densities_hold_as_in_memory(tmp_path):
    tensors = weights()
    save_file(tensors, tmp_path / "in.safetensors")
    bounds = {"min_density": 0.1, "max_density": {"*.1.*": 0.4}, "densities": {"model.layers.4.mlp.weight": 0.75}}
    ll.prune(tensors, 0.7, include=counted(tensors), **bounds)
    ll.prune_checkpoint(tmp_path / "in.safetensors", tmp_path / "out.safetensors", sparsity=0.7, **bounds)
    assert_same(tensors, tmp_path / "out.safetensors")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_sixteen_bits_are_read_twice_and_thirty_two_three_times(tmp_path, monkeypatch, dtype):
    torch.manual_seed(0)
    tensors = {f"layers.{n}.weight": (torch.randn(100, 90) * (n + 1)).to(dtype) for n in range(6)}
    save_file(tensors, tmp_path / "in.safetensors")
    read = dict.fromkeys(tensors, 0)
    plain = Checkpoint.read_bytes

    def counting(self, name, begin, end, into=None):
        read[name] += end - begin
        return plain(self, name, begin, end, into)

    monkeypatch.setattr(Checkpoint, "read_bytes", counting)
    for sparsity in (0.2, 0.5, 0.95):
        read.update(dict.fromkeys(read, 0))
        ll.prune_checkpoint(tmp_path / "in.safetensors", tmp_path / "out.safetensors", sparsity=sparsity, force=True)
        assert max(read[name] / tensors[name].nbytes for name in tensors) <= (2 if dtype == torch.bfloat16 else 3)
