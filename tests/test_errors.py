"""What cannot be done is an error that says so, and nothing has changed."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import lamplighter as ll
from strategies import METHODS


def weights():
    generator = torch.Generator().manual_seed(0)
    return {
        "first.weight": torch.randn(4, 6, generator=generator),
        "second.weight": torch.randn(8, 3, generator=generator),
    }


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))


def frozen_copy(target):
    tensors = target.state_dict() if isinstance(target, torch.nn.Module) else target
    return {name: value.clone() for name, value in tensors.items() if not value.is_meta}


def refused(action, *targets, match=None, hint=True):
    """`action` raises a LamplighterError, which is a ValueError, and leaves `targets` as they were."""
    before = [frozen_copy(target) for target in targets]
    with pytest.raises(ll.LamplighterError, match=match) as caught:
        action()
    assert isinstance(caught.value, ValueError)
    assert not hint or caught.value.hint
    assert not hint or str(caught.value).endswith(f"\nhint: {caught.value.hint}")
    for target, kept in zip(targets, before, strict=True):
        tensors = target.state_dict() if isinstance(target, torch.nn.Module) else target
        for name, value in kept.items():
            assert value.cpu().numpy().tobytes() == tensors[name].contiguous().numpy().tobytes(), name
    return caught.value


def both(given, *arguments, match=None, hint=True, **options):
    refused(lambda: ll.allocate(given, *arguments, **options), given, match=match, hint=hint)
    return refused(lambda: ll.prune(given, *arguments, **options), given, match=match, hint=hint)


@pytest.mark.parametrize("sparsity", [-0.1, 1.0001, 90, float("nan"), float("inf"), -float("inf"), np.float64("nan")])
def test_sparsity_outside_zero_and_one(sparsity):
    both(weights(), sparsity, match="sparsity", hint=False)
    both(net(), sparsity, match=str(sparsity), hint=False)


@pytest.mark.parametrize("sparsity", [None, "0.5", "much", [0.5], {"a": 0.5}, 0.5j])
def test_sparsity_that_is_not_a_number(sparsity):
    both(weights(), sparsity, match="sparsity", hint=False)


def test_sparsity_may_be_any_real_number():
    for half in (np.float32(0.5), np.float64(0.5), Fraction(1, 2)):
        assert sum(ll.allocate(weights(), half).values()) == 24
    assert sum(ll.allocate(weights(), np.int64(0)).values()) == 48


@pytest.mark.parametrize(
    ("wrong", "meant"), [("lmap", "lamp"), ("globl", "global"), ("uniform-", "uniform"), ("ERK", "erk")]
)
def test_an_unknown_method_names_the_known_ones_and_the_nearest(wrong, meant):
    error = both(weights(), 0.5, wrong, match=wrong)
    assert all(method in str(error) for method in METHODS)
    assert f"{meant!r}" in error.hint or f'"{meant}"' in error.hint or meant in error.hint


def test_a_method_unlike_any_other_names_the_known_ones():
    error = both(weights(), 0.5, "zzzzzz", match="zzzzzz", hint=False)
    assert all(method in str(error) for method in METHODS)


def test_a_method_that_is_neither_name_nor_function():
    both(weights(), 0.5, 3, hint=False)
    both(weights(), 0.5, None, hint=False)


def test_an_unknown_score_names_the_known_ones():
    error = both(weights(), 0.5, "lamp", "magnitud", match="magnitud", hint=False)
    assert all(score in str(error) for score in ("magnitude", "random", "snip", "wanda"))


@pytest.mark.parametrize(
    "path", ["no_such_module_at_all:function", "math:no_such_function", "math:", ":sqrt", "math:pi"]
)
def test_a_plugin_that_is_not_there(path):
    both(weights(), 0.5, path, match="math|no_such|:", hint=False)


@pytest.mark.parametrize("given", [{}, torch.nn.ReLU(), torch.nn.BatchNorm1d(3), torch.nn.Embedding(4, 3)])
def test_nothing_prunable(given):
    both(given, 0.5)


def test_a_filter_that_leaves_nothing():
    both(net(), 0.5, include="encoder.*", match=r"encoder")
    both(net(), 0.5, exclude="*")


def test_a_bound_on_a_layer_that_does_not_exist():
    both(weights(), 0.5, densities={"third.weight": 0.5}, match="third.weight")
    both(weights(), 0.5, min_density={"thrid*": 0.5}, match="thrid")


@pytest.mark.parametrize("bound", [-0.1, 1.1, float("nan"), "half"])
@pytest.mark.parametrize("option", ["min_density", "max_density", "densities"])
def test_bounds_outside_zero_and_one(bound, option):
    both(weights(), 0.5, match="density|densities", hint=False, **{option: {"first.weight": bound}})


@pytest.mark.parametrize(
    "given", [None, 3, "model.safetensors", [torch.ones(2, 2)], {"a": [1.0, 2.0]}, {3: torch.ones(2)}]
)
def test_what_is_neither_a_model_nor_a_mapping_of_tensors(given):
    for function in (ll.allocate, ll.prune):
        with pytest.raises(ll.LamplighterError):
            function(given, 0.5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", ["lamp", "uniform"])
def test_a_weight_that_is_not_finite_names_its_layer(value, dtype, method):
    given = {name: weight.to(dtype) for name, weight in weights().items()}
    given["second.weight"][5, 1] = value
    before = {name: weight.clone() for name, weight in given.items()}
    for function in (ll.allocate, ll.prune):
        with pytest.raises(ll.LamplighterError, match=r"second\.weight"):
            function(given, 0.5, method)
    for name, weight in given.items():
        assert torch.equal(weight.nan_to_num(7, 8, 9), before[name].nan_to_num(7, 8, 9))


def test_a_nan_among_many_weights_is_found():
    for dtype in (torch.float32, torch.bfloat16):
        given = {"a": torch.randn(300_000, generator=torch.Generator().manual_seed(0)).to(dtype), "b": torch.ones(4, 4)}
        given["a"][299_999] = float("nan")
        for function in (ll.allocate, ll.prune):
            with pytest.raises(ll.LamplighterError, match="a"):
                function(given, 0.5)
        assert torch.equal(given["b"], torch.ones(4, 4))


@pytest.mark.parametrize("result", ["shape", "negative", "nan", "inf", "none", "integers"])
def test_a_score_function_that_returns_what_is_no_importance(result):
    def score(name, weight, evidence):
        if name == "first.weight":
            return weight.abs()
        return {
            "shape": weight.abs()[1:],
            "negative": -weight.abs(),
            "nan": weight.abs() * float("nan"),
            "inf": weight.abs() / 0.0,
            "none": None,
            "integers": "large",
        }[result]

    both(weights(), 0.5, "lamp", score, match=r"second\.weight", hint=False)


def test_scores_that_need_evidence_ask_for_it():
    for score in ("snip", "wanda"):
        both(weights(), 0.5, "lamp", score, match="evidence|" + score)


def test_meta_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2, device="meta"))
    both(model, 0.5, match=r"1\.weight")
    both(weights() | {"third.weight": torch.ones(2, 2, device="meta")}, 0.5, match=r"third\.weight")


def test_lazy_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LazyLinear(2))
    before = model[0].weight.clone()
    for function in (ll.allocate, ll.prune):
        with pytest.raises(ll.LamplighterError, match=r"1\.weight") as caught:
            function(model, 0.5)
        assert caught.value.hint
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.int8, torch.int32, torch.complex64, torch.bool]
)
def test_storage_that_is_not_plain_floats_is_refused_by_name(dtype):
    given = weights() | {"packed.weight": torch.ones(4, 4).to(dtype)}
    before = {name: weight.clone() for name, weight in weights().items()}
    for function in (ll.allocate, ll.prune):
        with pytest.raises(ll.LamplighterError, match=r"packed\.weight"):
            function(given, 0.5)
    assert all(torch.equal(given[name], value) for name, value in before.items())


def other_names():
    return ll.prune({f"other.{name}": weight for name, weight in weights().items()}, 0.5)


def other_shapes():
    return ll.prune({name: weight.t().contiguous() for name, weight in weights().items()}, 0.5)


@pytest.mark.parametrize("foreign", [other_names, other_shapes])
def test_masks_of_another_model(foreign, tmp_path):
    masks, given = foreign(), weights()
    both(given, 0.75, masks=masks, match="weight")
    refused(lambda: masks.apply(given), given, match="weight")
    masks.save(tmp_path / "masks.safetensors")
    loaded = ll.Masks.load(tmp_path / "masks.safetensors")
    refused(lambda: loaded.apply(given), given, match="weight")
    both(given, 0.75, masks=loaded, match="weight")


def test_masks_that_fit_all_layers_but_one_change_none():
    given = weights()
    masks = ll.Masks({"first.weight": torch.zeros(4, 6, dtype=torch.bool), "second.weight": torch.ones(3, 8).bool()})
    refused(lambda: masks.apply(given), given, match=r"second\.weight")
    masks = ll.Masks({"first.weight": torch.zeros(4, 6, dtype=torch.bool), "zeroth.weight": torch.ones(3, 8).bool()})
    refused(lambda: masks.apply(given), given, match=r"zeroth\.weight|second\.weight")


def test_masks_that_are_no_masks():
    both(weights(), 0.5, masks={"first.weight": 3}, hint=False)
    for entry in (torch.ones(3), [True], None):
        with pytest.raises(ll.LamplighterError):
            ll.Masks({"a": entry})


@pytest.mark.parametrize(
    ("method", "sparsity", "options", "missing"),
    [
        ("lamp", 0.9, {"min_density": 0.5}, 19),
        ("uniform", 0.9, {"min_density": 0.5}, 19),
        ("lamp", 0.25, {"max_density": 0.5}, 12),
        ("erk", 0.25, {"max_density": 0.5}, 12),
        ("global", 0.5, {"densities": {"first.weight": 1.0, "second.weight": 0.5}}, 12),
        ("lamp", 0.5, {"densities": {"*": 0.25}}, 12),
        ("lamp", 0.75, {"densities": {"first.weight": 0.75}}, 6),
    ],
)
def test_infeasible_bounds_say_by_how_many_weights(method, sparsity, options, missing):
    # 24 weights in each of the two layers.
    both(weights(), sparsity, method, match=rf"\b{missing} weights?\b", **options)


def test_bounds_that_contradict_each_other():
    both(weights(), 0.5, min_density=0.75, max_density=0.25, hint=False)


def test_uniform_plus_whose_dense_layer_is_too_large():
    generator = torch.Generator().manual_seed(0)
    given = {"conv": torch.randn(4, 2, 3, generator=generator), "line": torch.randn(5, 4, generator=generator)}
    # 24 + 4 must stay of 44; 22 may.
    both(given, 0.5, "uniform+", match=r"\b6 weights?\b")


@pytest.mark.parametrize("method", METHODS)
def test_more_than_is_alive_cannot_be_kept(method):
    given = weights()
    masks = ll.prune(given, 0.75)
    both(given, 0.5, method, masks=masks, match="12")


def answers(answer):
    return lambda spectra, shapes, keep: answer


@pytest.mark.parametrize(
    "answer",
    [
        {"first.weight": 24},
        {"first.weight": 12, "third.weight": 12},
        {"first.weight": 8, "second.weight": 8, "third.weight": 8},
        {"first.weight": 12.0, "second.weight": 12.0},
        {"first.weight": "12", "second.weight": 12},
        {"first.weight": 12, "second.weight": 11},
        {"first.weight": 12, "second.weight": 13},
        {"first.weight": -1, "second.weight": 25},
        {"first.weight": 25, "second.weight": -1},
        {"first.weight": None, "second.weight": 24},
        [12, 12],
        None,
    ],
    ids=str,
)
def test_a_users_method_that_answers_wrongly(answer):
    both(weights(), 0.5, answers(answer), hint=False)


def test_a_users_method_that_keeps_more_than_a_layer_has_alive():
    given = weights()
    masks = ll.prune(given, 0.5, "uniform")
    both(given, 0.7, answers({"first.weight": 13, "second.weight": 1}), masks=masks, match=r"first\.weight", hint=False)


def test_holding_with_an_optimizer_that_does_not_own_the_parameters():
    model = net()
    masks = ll.prune(model, 0.5)
    stranger = torch.optim.SGD(net().parameters(), lr=0.1)
    refused(lambda: masks.hold(stranger), model)


def test_holding_masks_that_are_bound_to_nothing(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    masks = ll.prune(model, 0.5)
    masks.save(tmp_path / "masks.safetensors")
    refused(lambda: ll.Masks.load(tmp_path / "masks.safetensors").hold(optimizer), model, match="apply|bound")
    refused(lambda: ll.Masks(dict(masks)).hold(optimizer), model, match="apply|bound")


def test_holding_with_what_is_no_optimizer():
    model = net()
    masks = ll.prune(model, 0.5)
    refused(lambda: masks.hold(model), model, hint=False)


def test_a_layer_that_masks_do_not_have():
    masks = ll.prune(net(), 0.5)
    with pytest.raises(KeyError):
        masks["nowhere.weight"]


def test_a_weight_whose_entries_share_memory_changes_nothing():
    given = weights() | {"third.weight": torch.ones(1, 4).expand(3, 4)}
    both(given, 0.5, match=r"third\.weight")


@pytest.mark.parametrize("mask", [{3: torch.ones(2, dtype=torch.bool)}, [torch.ones(2, dtype=torch.bool)], None])
def test_masks_made_of_what_is_no_mapping_of_names(mask):
    with pytest.raises(ll.LamplighterError):
        ll.Masks(mask)


UNFIT = {
    "on the meta device": lambda weight: weight.to("meta"),
    "whole numbers": lambda weight: weight.to(torch.int32),
    "quantised to eight bits": lambda weight: weight.to(torch.float8_e4m3fn),
    "sparse": lambda weight: weight.to_sparse(),
    "expanded": lambda weight: weight[:, :1].expand(weight.shape),
}


@pytest.mark.parametrize("unfit", UNFIT.values(), ids=UNFIT)
def test_masks_are_not_applied_to_weights_of_which_one_cannot_be_pruned(unfit):
    masks = ll.prune(weights(), 0.5)
    given = weights()
    whole = given["first.weight"].clone()
    given["second.weight"] = unfit(given["second.weight"])
    with pytest.raises(ll.LamplighterError, match=r"second\.weight"):
        masks.apply(given)
    assert torch.equal(given["first.weight"], whole)
    assert masks == ll.prune(weights(), 0.5)  # the masks themselves are whole, too


def test_masks_are_not_applied_to_a_lazy_model():
    masks = ll.prune({"0.weight": torch.randn(3, 4)}, 0.5)
    model = torch.nn.Sequential(torch.nn.LazyLinear(3))
    with pytest.raises(ll.LamplighterError, match="lazy"):
        masks.apply(model)
