"""Scores: what each computes, that random is the same everywhere, and that wrong importances are refused by name."""

import hashlib
import sys
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lamplighter.errors import LamplighterError
from lamplighter.evidence import gradients, input_norms
from lamplighter.scores import SCORES, importances, random_values
from lamplighter.targets import Layer, find_layers

CPU = torch.device("cpu")
MASK = (1 << 64) - 1


def layers(**tensors):
    return find_layers(tensors)


# ------------------------------------------------------------------------------------------------------------ magnitude


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_magnitude_is_the_weight_itself_without_a_copy(dtype):
    weight = nn.Parameter(torch.randn(3, 4).to(dtype))
    (found,) = importances("magnitude", layers(w=weight)).values()
    assert found.data_ptr() == weight.data_ptr()
    assert found.dtype == dtype
    assert not found.requires_grad


# --------------------------------------------------------------------------------------------------------------- random


def splitmix64(name, place, seed):
    """The definition, in Python's integers."""
    start = int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest(), "little")
    bits = (start + place * 0x9E3779B97F4A7C15) & MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    bits ^= bits >> 31
    return (2 * (bits >> 41) + 1) / 2**24


@given(st.text(max_size=8), st.integers(0, 2**40), st.integers(-(2**70), 2**70))
def test_random_is_the_hash_it_says_it_is(name, start, seed):
    found = random_values(name, start, start + 4, seed, CPU)
    assert found.dtype == torch.float32
    assert found.tolist() == [splitmix64(name, place, seed) for place in range(start, start + 4)]


def test_random_lies_strictly_between_zero_and_one_and_is_spread_evenly():
    (found,) = importances("random", layers(w=torch.zeros(300_000))).values()
    assert 0 < found.min() < 1e-3
    assert 1 - 1e-3 < found.max() < 1
    assert found.double().mean() == pytest.approx(0.5, abs=0.005)
    assert torch.histc(found, 10, 0, 1).min() > 29_000


def test_random_of_a_part_is_the_part_of_random():
    whole = random_values("w", 0, 1000, 3, CPU)
    parts = [random_values("w", start, start + 100, 3, CPU) for start in range(0, 1000, 100)]
    assert torch.equal(whole, torch.cat(parts))
    (found,) = importances("random", layers(w=torch.zeros(600, 1000)), 3).values()
    assert torch.equal(found.view(-1)[-10:], random_values("w", 599_990, 600_000, 3, CPU))


def test_random_counts_entries_in_logical_order_whatever_the_memory_format():
    plain = torch.randn(2, 3, 4, 4)
    found = [
        importances("random", layers(w=each))["w"] for each in (plain, plain.to(memory_format=torch.channels_last))
    ]
    assert torch.equal(*found)


def test_random_depends_on_seed_and_name():
    both = importances("random", layers(a=torch.zeros(50), b=torch.zeros(50)))
    other = importances("random", layers(a=torch.zeros(50)), 1)
    assert not torch.equal(both["a"], both["b"])
    assert not torch.equal(both["a"], other["a"])
    assert torch.equal(both["a"], importances("random", layers(a=torch.zeros(50)), 0)["a"])


@pytest.mark.parametrize("seed", [np.int64(3), np.uint8(3)], ids=lambda seed: type(seed).__name__)
def test_random_takes_numpys_integers_as_it_takes_pythons(seed):
    weights = layers(w=torch.zeros(9))
    assert torch.equal(importances("random", weights, seed)["w"], importances("random", weights, 3)["w"])


@pytest.mark.parametrize("wrong", [1.5, "0", {"w": 1}, True, np.bool_(True), np.float64(3)])
def test_random_takes_an_integer_seed(wrong):
    with pytest.raises(LamplighterError, match="takes a seed"):
        importances("random", layers(w=torch.zeros(3)), wrong)


@pytest.mark.gpu
def test_random_is_the_same_on_cuda():
    for start in (0, 2**40):
        found = random_values("w", start, start + 100_000, 7, torch.device("cuda"))
        assert torch.equal(found.cpu(), random_values("w", start, start + 100_000, 7, CPU))


# ------------------------------------------------------------------------------------------------------- snip and wanda


def test_snip_is_gradient_times_weight():
    weight, gradient = torch.tensor([[1.0, -2.0, 0.0]]), torch.tensor([[-3.0, 4.0, 5.0]])
    assert importances("snip", layers(w=weight), {"w": gradient})["w"].tolist() == [[3.0, 8.0, 0.0]]


def test_snip_is_computed_in_float32_for_every_dtype():
    weight = torch.tensor([1.5, -2.0])
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        found = importances("snip", layers(w=weight.to(dtype)), {"w": torch.tensor([1e5, 1e-6])})["w"]
        assert found.dtype == torch.float32
        assert found.tolist() == [150_000.0, torch.tensor(2e-6).item()]


def test_snip_takes_each_experts_part_of_a_stacks_gradient():
    stack, gradient = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    found = importances("snip", layers(**{"mlp.experts.down_proj": stack}), {"mlp.experts.down_proj": gradient})
    assert list(found) == ["mlp.experts.down_proj[0]", "mlp.experts.down_proj[1]"]
    assert torch.equal(torch.stack(list(found.values())), (stack * gradient).abs())


def test_snip_with_collected_gradients():
    model = nn.Linear(2, 1)
    evidence = gradients(model, [(torch.tensor([[1.0, 2.0]]), None)], lambda output, target: output.sum())
    found = importances("snip", find_layers(model), evidence)["weight"]
    assert torch.equal(found, (model.weight * torch.tensor([[1.0, 2.0]])).abs())


def test_wanda_is_weight_times_input_norm():
    weight = torch.tensor([[1.0, -2.0], [3.0, 0.0]])
    found = importances("wanda", layers(w=weight), {"w": torch.tensor([2.0, 5.0])})["w"]
    assert found.tolist() == [[2.0, 10.0], [6.0, 0.0]]


def test_wanda_with_collected_norms_fits_every_layer_it_sees():
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.ConvTranspose2d(4, 2, 2), nn.Flatten(), nn.Linear(18, 2))
    found = importances("wanda", find_layers(model), input_norms(model, [torch.randn(5, 2, 4, 4)]))
    assert {name: each.shape for name, each in found.items()} == {
        f"{place}.weight": model[place].weight.shape for place in (0, 1, 3)
    }


@pytest.mark.parametrize(("score", "collector"), [("snip", "gradients"), ("wanda", "input_norms")])
@pytest.mark.parametrize("evidence", [None, 3, {}, {"other": torch.ones(2)}, {"w": 3.0}])
def test_missing_evidence_names_the_layer_and_the_collector(score, collector, evidence):
    with pytest.raises(LamplighterError, match=f"score '{score}' needs evidence for layer 'w'") as caught:
        importances(score, layers(w=torch.ones(2)), evidence)
    assert f"lamplighter.{collector}(" in caught.value.hint


def test_wanda_suggests_leaving_out_a_layer_it_cannot_see():
    model = nn.MultiheadAttention(4, 2)
    with pytest.raises(LamplighterError, match="in_proj_weight") as caught:
        importances("wanda", find_layers(model), {})
    assert "exclude='in_proj_weight'" in caught.value.hint


@pytest.mark.parametrize("score", ["snip", "wanda"])
@pytest.mark.parametrize("shape", [(2, 2), (4,), (1, 2, 3)])
def test_evidence_of_another_shape_is_refused(score, shape):
    with pytest.raises(LamplighterError, match=rf"score '{score}', layer 'w'.*has shape"):
        importances(score, layers(w=torch.ones(2, 3)), {"w": torch.ones(shape)})


@pytest.mark.parametrize("score", ["snip", "wanda"])
def test_evidence_that_is_not_finite_is_refused(score):
    with pytest.raises(LamplighterError, match=rf"score '{score}', layer 'w': .* NaN or infinite"):
        importances(score, layers(w=torch.ones(2)), {"w": torch.tensor([1.0, float("nan")])})


# ----------------------------------------------------------------------------------------------------- users' functions


def test_a_users_function_gets_name_weight_and_evidence():
    seen = []

    def score(name, weight, evidence):
        seen.append((name, weight, evidence))
        return weight.square()

    weight, evidence = torch.tensor([3.0, -4.0]), object()
    found = importances(score, layers(w=weight), evidence)
    assert found["w"].tolist() == [9.0, 16.0]
    assert [(name, given) for name, _, given in seen] == [("w", evidence)]


@pytest.mark.parametrize("change", [torch.Tensor.abs_, lambda weight: weight.zero_() + 1], ids=["abs_", "zero_"])
def test_a_users_function_cannot_change_the_model(change):
    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    importances(lambda name, weight, evidence: change(weight), find_layers(model))
    assert torch.equal(model.weight, before)
    stack = torch.randn(2, 3, 4)
    before = stack.clone()
    importances(lambda name, weight, evidence: change(weight), layers(**{"mlp.experts.down_proj": stack}))
    assert torch.equal(stack, before)


def test_a_users_function_gets_a_weight_without_a_graph():
    found = []
    importances(lambda name, weight, evidence: found.append(weight) or weight.abs(), find_layers(nn.Linear(4, 3)))
    assert not found[0].requires_grad


def test_the_exception_of_a_users_function_stays_its_own():
    def failing(name, weight, evidence):
        return evidence[name]

    with pytest.raises(KeyError, match=r"^'w'$"):
        importances(failing, layers(w=torch.ones(2)), {})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool], ids=str)
def test_real_importances_become_float32(dtype):
    found = importances(lambda name, weight, evidence: torch.tensor([0, 1]).to(dtype), layers(w=torch.ones(2)))["w"]
    assert found.dtype == torch.float32
    assert found.tolist() == [0.0, 1.0]


def test_an_importance_with_a_graph_is_detached():
    weight = nn.Parameter(torch.ones(2))
    found = importances(lambda name, w, evidence: (weight * 2).abs(), layers(w=weight))["w"]
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda weight: None, "is a NoneType, expected a Tensor"),
        (lambda weight: [1.0, 2.0], "is a list, expected a Tensor"),
        (lambda weight: weight[:1], r"has shape \(1,\), expected \(2,\)"),
        (lambda weight: weight.view(1, 2), r"has shape \(1, 2\), expected \(2,\)"),
        (lambda weight: weight.sum(), r"has shape \(\), expected \(2,\)"),
        (lambda weight: -weight, "negative"),
        (lambda weight: weight * float("nan"), "NaN or infinite"),
        (lambda weight: weight / 0, "NaN or infinite"),
        (lambda weight: weight.double() * 1e200, "NaN or infinite"),
        (lambda weight: weight.to(torch.complex64), r"complex64, expected real numbers\nhint: .*abs\(\)"),
    ],
)
def test_a_wrong_importance_is_refused_naming_layer_and_score(wrong, said):
    def mine(name, weight, evidence):
        return wrong(weight) if name == "b" else weight

    with pytest.raises(LamplighterError, match=rf"score 'mine', layer 'b': .*{said}"):
        importances(mine, layers(a=torch.ones(2), b=torch.ones(2)))


@pytest.mark.gpu
def test_an_importance_is_moved_to_the_weights_device():
    found = importances(lambda name, weight, evidence: weight.abs().cpu(), layers(w=torch.ones(2, device="cuda")))["w"]
    assert found.is_cuda


def test_a_score_can_be_named_as_module_and_function(monkeypatch):
    module = types.ModuleType("plugin_of_mine")
    module.square = lambda name, weight, evidence: weight.square()
    module.number = 3
    monkeypatch.setitem(sys.modules, "plugin_of_mine", module)
    assert importances("plugin_of_mine:square", layers(w=torch.tensor([3.0])))["w"].tolist() == [9.0]
    for wrong, said in {
        "plugin_of_mine:cube": "has no 'cube'",
        "plugin_of_mine:number": "is a int, expected a function",
        "no_such_module_here:f": "cannot import 'no_such_module_here'",
        ":f": "does not name a module and a function",
        "plugin_of_mine:": "does not name a module and a function",
        ".plugin_of_mine:square": "does not name a module and a function",
    }.items():
        with pytest.raises(LamplighterError, match=said):
            importances(wrong, layers(w=torch.ones(1)))


@pytest.mark.parametrize(("wrong", "near"), [("magnitud", "magnitude"), ("SNIP", "snip"), ("wander", "wanda")])
def test_an_unknown_score_names_the_known_ones_and_the_nearest(wrong, near):
    with pytest.raises(
        LamplighterError, match=f"unknown score '{wrong}'; the scores are {', '.join(SCORES)}"
    ) as caught:
        importances(wrong, layers(w=torch.ones(1)))
    assert caught.value.hint == f"did you mean '{near}'?"


@pytest.mark.parametrize("wrong", [None, 3, ["magnitude"], np.ones(2)])
def test_a_score_must_be_a_name_or_a_function(wrong):
    with pytest.raises(LamplighterError, match="expected a name or a function"):
        importances(wrong, layers(w=torch.ones(1)))


@pytest.mark.parametrize("score", ["magnitude", "random"])
def test_empty_layers_have_empty_importances(score):
    assert importances(score, [Layer("w", torch.ones(0, 3))])["w"].shape == (0, 3)
