"""What the paper states about its score, each statement a test."""

from fractions import Fraction
from itertools import pairwise
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lamplighter as ll
import oracles
from strategies import keeps, models

pytestmark = pytest.mark.filterwarnings("ignore::lamplighter.LamplighterWarning")


def total_of(weights):
    return sum(value.numel() for value in weights.values())


@given(models())
@settings(max_examples=60, deadline=None)
def test_a_larger_magnitude_has_a_larger_score(weights):
    """Eq. 2."""
    for weight in weights.values():
        energy, scores = oracles.squares(weight), oracles.lamp_scores(weight)
        for u in scores:
            assert all(scores[u] > scores[v] for v in scores if energy[u] > energy[v])


@given(models())
@settings(max_examples=60, deadline=None)
def test_exactly_one_weight_of_a_layer_scores_one(weights):
    for weight in weights.values():
        scores = list(oracles.lamp_scores(weight).values())
        assert scores.count(Fraction(1)) == (1 if any(oracles.squares(weight)) else 0)
        assert not scores or max(scores) <= 1


@given(models(), st.data())
@settings(max_examples=60, deadline=None)
def test_masks_never_keep_a_smaller_magnitude_and_prune_a_larger_one(weights, data):
    total = total_of(weights)
    keep = data.draw(keeps(total))
    magnitudes = {name: weight.double().abs() for name, weight in weights.items()}
    masks = ll.prune(weights, (total - keep) / total)
    for name, mask in masks.items():
        kept, pruned = magnitudes[name][mask], magnitudes[name][~mask]
        assert not len(kept) or not len(pruned) or kept.min() >= pruned.max()


@given(models(), st.data())
@settings(max_examples=60, deadline=None)
def test_lamp_empties_no_layer_before_every_other_is_down_to_one_weight(weights, data):
    total = total_of(weights)
    keep = data.draw(keeps(total))
    budgets = ll.allocate(weights, (total - keep) / total)
    alive = [name for name, weight in weights.items() if weight.any()]
    if any(budgets[name] == 0 for name in alive):
        assert all(budgets[name] <= 1 for name in weights)


@given(models(), st.data())
@settings(max_examples=40, deadline=None)
def test_pruning_greedily_one_weight_at_a_time_gives_the_same_masks(weights, data):
    """Section 2.1: remove the single smallest score, recompute on what survives, and again."""
    total = total_of(weights)
    keep = data.draw(st.integers(0, total))
    expected = oracles.greedy_lamp(weights, keep)
    masks, alive = None, total
    while alive > keep:
        alive -= 1
        masks = ll.prune(weights, (total - alive) / total, masks=masks)
    assert masks is None or all(torch.equal(masks[name], expected[name]) for name in weights)


def test_rescaling_a_layer_does_not_change_the_budgets():
    generator = torch.Generator().manual_seed(3)
    weights = {name: torch.randn(40, 30, generator=generator) for name in "abc"}
    for factor in (2.0**-40, 0.5, 2.0**30):
        scaled = weights | {"b": weights["b"] * factor}
        for sparsity in (0.1, 0.5, 0.9, 0.99):
            assert ll.allocate(scaled, sparsity) == ll.allocate(weights, sparsity)


def forward(weights, inputs):
    *hidden, last = weights
    for weight in hidden:
        inputs = (weight @ inputs).relu()
    return last @ inputs


def worst_change(weights, pruned, generator):
    """The largest output change found over the unit ball: many directions, the best of them climbed further."""
    inputs = torch.randn(weights[0].shape[1], 256, generator=generator, dtype=torch.float64)
    inputs = torch.nn.functional.normalize(inputs, dim=0).requires_grad_()
    worst = 0.0
    for _ in range(40):
        change = (forward(weights, inputs) - forward(pruned, inputs)).norm(dim=0)
        worst = max(worst, change.max().item())
        (slope,) = torch.autograd.grad(change.sum(), inputs)
        inputs = torch.nn.functional.normalize(inputs.detach() + 0.3 * slope, dim=0).requires_grad_()
    return worst


@pytest.mark.parametrize("seed", range(6))
def test_the_output_changes_by_no_more_than_inequality_8(seed):
    """sup |f(x) - f~(x)| <= |W_i - W~_i|_F prod_{j != i} |W_j|_F, pruning one layer of a ReLU network."""
    generator = torch.Generator().manual_seed(seed)
    widths = [5, 8, 7, 6, 3]
    weights = [torch.randn(out, into, generator=generator, dtype=torch.float64) for into, out in pairwise(widths)]
    for place, weight in enumerate(weights):
        changed = weight.clone()
        ll.prune({"layer": changed}, 0.5)
        pruned = [*weights[:place], changed, *weights[place + 1 :]]
        others = prod(other.norm().item() for other in weights[:place] + weights[place + 1 :])
        bound = (weight - changed).norm().item() * others
        assert 0 < worst_change(weights, pruned, generator) <= bound


def test_inequality_8_is_met_with_equality_by_rank_one_layers():
    """One unit in every layer: every norm in the proof is attained, so the bound is the change itself."""
    weights = [torch.tensor([[3.0]]), torch.tensor([[-2.0, 0.5]]).T, torch.tensor([[0.0, 4.0]])]
    pruned = [weights[0], weights[1] * torch.tensor([[1.0], [0.0]]), weights[2]]
    change = (forward(weights, torch.ones(1, 1)) - forward(pruned, torch.ones(1, 1))).norm()
    assert change == 3.0 * 0.5 * 4.0
