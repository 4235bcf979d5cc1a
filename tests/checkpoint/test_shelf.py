"""Spectra that are put away come back as they were."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import lamplighter as ll
from checkpoint.made import contents, weights
from lamplighter.checkpoint import shelf as shelves
from lamplighter.checkpoint.shelf import Shelf
from lamplighter.spectrum import spectrum_of

SPECTRA = {
    "a": spectrum_of(torch.randn(300).bfloat16()),
    "b": spectrum_of(torch.zeros(5)),
    "c": spectrum_of(torch.randn(200)),
    "d": spectrum_of(torch.randn(40, dtype=torch.float64)),
}


def filled(shelf):
    for name in ("c", "a", "d", "b"):
        shelf.put(name, SPECTRA[name])
    return shelf


@pytest.mark.parametrize("in_memory", [0, 400, 1 << 20])
def test_what_is_put_away_comes_back(in_memory):
    shelf = filled(Shelf(SPECTRA, in_memory))
    assert list(shelf) == list(SPECTRA)
    for name, spectrum in SPECTRA.items():
        assert shelf[name] == spectrum
        assert shelf[name].keys.dtype == spectrum.keys.dtype
        assert (shelf[name].size, shelf[name].nonzero) == (spectrum.size, spectrum.nonzero)
        assert np.array_equal((shelf[name] + spectrum).counts, 2 * spectrum.counts.astype(int))


def test_without_a_place_to_put_them_they_stay_in_memory(monkeypatch):
    def refuse(**_):
        raise OSError("no room")

    monkeypatch.setattr(shelves.tempfile, "TemporaryFile", refuse)
    shelf = filled(Shelf(SPECTRA, 0))
    assert all(shelf[name] == spectrum for name, spectrum in SPECTRA.items())


def test_pruning_gives_the_same_bytes_with_spectra_put_away(tmp_path, monkeypatch):
    save_file(weights(), tmp_path / "in.safetensors")
    ll.prune_checkpoint(tmp_path / "in.safetensors", tmp_path / "a.safetensors", sparsity=0.6)
    monkeypatch.setattr("lamplighter.checkpoint.stream.Shelf", lambda layers: Shelf(layers, 0))
    ll.prune_checkpoint(tmp_path / "in.safetensors", tmp_path / "b.safetensors", sparsity=0.6)
    assert contents(tmp_path / "a.safetensors").popitem()[1] == contents(tmp_path / "b.safetensors").popitem()[1]
