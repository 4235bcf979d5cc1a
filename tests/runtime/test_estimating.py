"""What is said before training: the multiply-adds that are left."""

import pytest
import torch

import lamplighter as ll
from lamplighter.models.vgg import vgg16
from lamplighter.runtime.estimating import estimate

IMAGES = torch.zeros(1, 3, 32, 32)


def test_the_dense_network_keeps_all():
    model = vgg16()
    for weight in model.parameters():
        torch.nn.init.ones_(weight)  # among millions of random weights one may be zero
    found = estimate(model, IMAGES)
    assert found.density == 1
    assert sum(layer.work for layer in found.layers) == 313_201_664
    assert sum(layer.weights for layer in found.layers) == 14_715_584


def test_budgets_count_by_layer():
    model = vgg16(width=8)
    budgets = ll.allocate(model, sparsity=0.9)
    found = estimate(model, IMAGES, budgets)
    assert {layer.name: layer.kept for layer in found.layers} == budgets
    ll.prune(model, sparsity=0.9)
    pruned = estimate(model, IMAGES)
    assert [layer.kept for layer in pruned.layers] == [layer.kept for layer in found.layers]
    assert pruned.density == pytest.approx(found.density)
    assert 0.1 < found.density < 1


def test_a_budget_of_more_than_there_is_is_refused():
    with pytest.raises(ll.LamplighterError, match="cannot keep 10000"):
        estimate(vgg16(width=8), IMAGES, {"features.0.weight": 10_000})
