"""Pruning with the kernels for any device gives the masks and weights of those for the CPU, bit for bit."""

import pytest
import torch

import lamplighter as ll
from lamplighter import reading, selection
from lamplighter.kernels import anywhere
from test_devices import DTYPES, METHODS, same_bits, weights


@pytest.mark.parametrize("sparsity", [0.5, 0.9])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore::lamplighter.LamplighterWarning")
def test_the_kernels_for_any_device_prune_as_those_for_the_cpu(method, dtype, sparsity, monkeypatch):
    if method == "uniform+" and sparsity > 0.8:
        pytest.skip("uniform+ cannot go so far here: its dense convolution is too large a part")
    layers, again = weights(dtype), weights(dtype)
    masks = ll.prune(layers, sparsity, method=method)
    monkeypatch.setattr(anywhere, "CHUNK", 5000 * 8)
    for module in (reading, selection):
        monkeypatch.setattr(module, "kernels_for", lambda run: anywhere)
    assert ll.prune(again, sparsity, method=method) == masks
    assert all(same_bits(again[name], layers[name]) for name in layers)
    later = ll.prune(again, 0.95 if method != "uniform+" else sparsity, method=method, masks=masks)
    monkeypatch.undo()
    assert later == ll.prune(layers, 0.95 if method != "uniform+" else sparsity, method=method, masks=masks)


@pytest.mark.parametrize("context", [torch.inference_mode, lambda: torch.device("meta")], ids=["inference", "meta"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_callers_mode_and_default_device_change_nothing(context, dtype):
    layers, again, after = weights(dtype), weights(dtype), weights(dtype)
    expected = ll.prune(layers, 0.8)
    with context():
        assert ll.allocate(again, 0.8) == expected.kept
        masks = ll.prune(again, 0.8)
    assert masks == expected
    assert ll.prune(after, 0.8) == expected
    assert all(same_bits(again[name], layers[name]) for name in layers)
