"""The search narrows to few bins from counts alone, and whole numbers settle the rest."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lamplighter as ll
from lamplighter import search
from lamplighter.reading import Tensors
from lamplighter.search import _kth, lamp_stretch
from lamplighter.spectra import Spectra
from lamplighter.spectrum import spectrum_of
from lamplighter.ties import Progression, smallest


def normal(size: int, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    return scale * torch.randn(size, generator=torch.Generator().manual_seed(seed))


LAYERS = {
    "normal": normal(40_000),
    "heavy tails": normal(40_000, seed=1) / normal(40_000, seed=2),
    "ternary": normal(40_000, seed=3).sign() * normal(40_000, seed=4).abs().gt(0.7),
    "near constant": 0.1 + normal(40_000, 1e-6, seed=5),
    "constant": torch.full((40_000,), 0.3),
    "one huge entry": torch.cat([torch.tensor([1e6]), normal(5000, seed=6)]),
    "small": normal(10, seed=7),
}


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("dominant", [None, "near constant", "normal", "heavy tails"])
def test_the_bracket_spans_few_bins_whatever_the_layers(sparsity, dominant, monkeypatch):
    layers = dict(LAYERS)
    if dominant:
        layers["dominant"] = LAYERS[dominant].repeat(25)
    widths = []
    refine = Spectra.refine

    def spy(self, bins, *, energy=False):
        widths.extend(last - first + 1 for first, last in bins.values())
        return refine(self, bins, energy=energy)

    monkeypatch.setattr(Spectra, "refine", spy)
    budgets = ll.allocate(layers, sparsity)
    total = sum(t.numel() for t in layers.values())
    assert sum(budgets.values()) == total - round(sparsity * total)
    assert max(widths, default=0) <= 6


def test_bounds_hold_every_key():
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(3000, generator=generator) * torch.rand(3000, generator=generator).pow(8)
    spectrum = spectrum_of(weights)
    stretch = lamp_stretch([spectrum], [0.0])
    descending = weights.abs().double().sort(descending=True).values
    squares = [Fraction(float(v)) ** 2 for v in descending]
    energy, place = Fraction(0), 0
    for row, count in enumerate(stretch.counts):
        for j in range(count):
            energy += squares[place]
            key = energy / squares[place]
            assert stretch.low[row] + j * stretch.low_step[row] <= key <= stretch.high[row] + j * stretch.high_step[row]
            place += 1
    assert place == 3000


@given(
    progressions=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.integers(1, 30)),
        min_size=1,
        max_size=300,
    ),
    enumerated=st.sampled_from([0, 3, 10**6]),
    data=st.data(),
)
def test_the_kth_smallest_key_of_progressions(progressions, enumerated, data):
    start, step, counts = (np.array(column) for column in zip(*progressions, strict=True))
    start = start / 4.0
    keys = np.sort(np.concatenate([s + d * np.arange(n) for s, d, n in zip(start, step, counts, strict=True)]))
    k = data.draw(st.integers(1, len(keys)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "ENUMERATED", enumerated)
        assert _kth(start, step, counts, k) == keys[k - 1]


@pytest.mark.parametrize(("group", "remembered"), [(1, 0), (3, 10**9), (10**9, 0)])
def test_what_is_kept_in_memory_changes_nothing(group, remembered, monkeypatch):
    expected = {s: ll.allocate(LAYERS, s) for s in (0.3, 0.9, 0.99)}
    monkeypatch.setattr(search, "GROUP", group)
    monkeypatch.setattr(search, "REMEMBERED", remembered)
    assert {s: ll.allocate(LAYERS, s) for s in expected} == expected


@given(
    progressions=st.lists(
        st.tuples(st.integers(0, 10**30), st.integers(1, 9), st.integers(1, 3), st.integers(1, 6)),
        min_size=1,
        max_size=8,
    ),
    data=st.data(),
)
def test_the_smallest_keys_in_whole_numbers(progressions, data):
    built = [Progression(str(i), e, s, first, n) for i, (e, s, first, n) in enumerate(progressions)]
    keys = sorted((p.key(j), i) for i, p in enumerate(built) for j in range(p.count))
    need = data.draw(st.integers(0, len(keys)))
    expected = [sum(1 for _, owner in keys[:need] if owner == i) for i in range(len(built))]
    assert (smallest(built, need) if need else [0] * len(built)) == expected


def test_exact_energies_of_spectra_and_of_weights_agree():
    weights = {"a": normal(5000), "b": normal(5000, 100.0, seed=1)}
    wide = {n: t.bfloat16() for n, t in weights.items()}
    for layers in (wide, {n: t.float() for n, t in wide.items()}):
        spectra = Spectra(Tensors(layers, {}))
        form = spectra["a"].form
        code = int(layers["a"].new_tensor([1.5]).view(form.bits))
        unit = Fraction(2) ** form.unit
        exact = sum(Fraction(float(v)) ** 2 for v in layers["a"] if abs(v) >= 1.5)
        assert spectra.exact_energy({"a": code})["a"] * unit**2 == exact
