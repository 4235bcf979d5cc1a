"""Choosing what counts, and bounds on the density of layers, against numbers worked out by hand."""

import warnings

import pytest
import torch

import lamplighter as ll

# LAMP scores of "a", a constant layer: 1/4, 1/3, 1/2, 1. Of "b": 1/85, 4/84, 16/80, 64/64.
PAIR = {"a": [[1.0, 1.0, 1.0, 1.0]], "b": [[1.0, 2.0, 4.0, 8.0]]}


def pair():
    return {name: torch.tensor(values) for name, values in PAIR.items()}


def tens(*names):
    return {name: torch.arange(1.0, 11.0).view(2, 5) for name in names}


def net():
    torch.manual_seed(0)
    return torch.nn.ModuleDict({name: torch.nn.Linear(4, 5) for name in ("body", "head", "tail")})


def test_without_bounds_lamp_favours_the_even_layer():
    assert ll.allocate(pair(), 0.5) == {"a": 3, "b": 1}
    assert ll.allocate(pair(), 0.25) == {"a": 4, "b": 2}


def test_min_density_raises_a_layer_and_the_others_pay():
    assert ll.allocate(pair(), 0.5, min_density={"b": 0.5}) == {"a": 2, "b": 2}
    assert ll.allocate(pair(), 0.25, min_density={"b": 1.0}) == {"a": 2, "b": 4}


def test_max_density_lowers_a_layer_and_the_others_gain():
    assert ll.allocate(pair(), 0.5, max_density={"a": 0.5}) == {"a": 2, "b": 2}
    assert ll.allocate(pair(), 0.5, max_density={"a": 0.25}) == {"a": 1, "b": 3}


def test_bounds_that_do_not_bind_change_nothing():
    assert ll.allocate(pair(), 0.5, min_density=0.25, max_density=0.75) == {"a": 3, "b": 1}


def test_one_number_bounds_every_layer():
    assert ll.allocate(pair(), 0.5, max_density=0.5) == {"a": 2, "b": 2}
    assert ll.allocate(pair(), 0.5, min_density=0.5) == {"a": 2, "b": 2}


def test_fixed_densities_count_towards_the_total():
    assert ll.allocate(pair(), 0.5, densities={"a": 0.25}) == {"a": 1, "b": 3}
    assert ll.allocate(pair(), 0.5, densities={"b": 0.75}) == {"a": 1, "b": 3}


def test_globs_name_the_bounded_layers():
    weights = tens("x.conv", "x.line", "y.conv")
    budgets = ll.allocate(weights, 0.8, "uniform", densities={"*.conv": 0.1})
    assert budgets == {"x.conv": 1, "x.line": 4, "y.conv": 1}
    assert ll.allocate(weights, 0.8, "uniform", min_density={"y.*": 0.4}) == {"x.conv": 1, "x.line": 1, "y.conv": 4}


@pytest.mark.parametrize("method", ["uniform", "er", "erk"])
def test_shaped_methods_share_out_what_bounds_leave(method):
    weights = tens("a", "b", "c")
    assert ll.allocate(weights, 0.5, method, min_density={"b": 0.9}) == {"a": 3, "b": 9, "c": 3}
    assert ll.allocate(weights, 0.5, method, max_density={"b": 0.1}) == {"a": 7, "b": 1, "c": 7}


def test_global_obeys_bounds():
    weights = {"a": torch.tensor([[5.0, 6.0, 7.0, 8.0]]), "b": torch.tensor([[1.0, 2.0, 3.0, 4.0]])}
    assert ll.allocate(weights, 0.5, "global", min_density={"b": 0.25}) == {"a": 3, "b": 1}
    assert ll.allocate(weights, 0.25, "global", max_density={"a": 0.75}) == {"a": 3, "b": 3}


@pytest.mark.parametrize("function", [ll.allocate, ll.prune])
def test_bounds_hold_in_pruning_as_in_allocation(function):
    weights = pair()
    result = function(weights, 0.5, min_density={"b": 0.5})
    assert dict(result if function is ll.allocate else result.kept) == {"a": 2, "b": 2}


def test_include_and_exclude_define_what_counts():
    assert list(ll.allocate(net(), 0.5)) == ["body.weight", "head.weight", "tail.weight"]
    assert list(ll.allocate(net(), 0.5, exclude="head*")) == ["body.weight", "tail.weight"]
    assert list(ll.allocate(net(), 0.5, include=["body.*", "head.weight"], exclude="*.bias")) == [
        "body.weight",
        "head.weight",
    ]
    assert sum(ll.allocate(net(), 0.25, exclude=["head*", "tail*"]).values()) == 15


def test_include_reaches_parameters_that_are_not_prunable_by_default():
    assert ll.allocate(net(), 0.4, "uniform", include="*.bias") == {
        "body.bias": 3,
        "head.bias": 3,
        "tail.bias": 3,
    }


def test_excluded_weights_are_not_touched():
    model = net()
    before = model["head"].weight.clone()
    masks = ll.prune(model, 0.9, exclude="head.*")
    assert torch.equal(model["head"].weight, before)
    assert set(masks) == {"body.weight", "tail.weight"}
    assert masks.total == 40


def test_a_mapping_obeys_include_and_exclude():
    weights = tens("a", "b", "c")
    assert ll.allocate(weights, 0.5, "uniform", exclude="b") == {"a": 5, "c": 5}
    assert ll.allocate(weights, 0.5, "uniform", include="b") == {"b": 5}


def test_emptying_a_layer_warns_once_naming_it():
    weights = {
        "big": torch.full((2, 5), 9.0),
        "small": torch.full((2, 5), 1.0),
        "tiny": torch.full((2, 5), 0.5),
    }
    with pytest.warns(ll.LamplighterWarning, match=r"small") as caught:
        assert ll.allocate(weights, 0.7, "global") == {"big": 9, "small": 0, "tiny": 0}
    assert len(caught) == 1
    assert "tiny" in str(caught[0].message)
    assert "\n" not in str(caught[0].message)
    with pytest.warns(ll.LamplighterWarning) as caught:
        ll.prune(weights, 0.7, "global")
    assert len(caught) == 1


def test_layers_that_are_empty_anyway_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ll.allocate({"a": torch.ones(2, 2), "none": torch.zeros(0, 3)}, 0.5)


def test_a_users_method_sees_spectra_shapes_and_keep():
    seen = {}

    def first_come(spectra, shapes, keep):
        seen.update(names=list(spectra), shapes={name: tuple(shape) for name, shape in shapes.items()}, keep=keep)
        budgets = {}
        for name, shape in shapes.items():
            budgets[name] = min(keep - sum(budgets.values()), shape[0] * shape[1])
        return budgets

    weights = tens("a", "b", "c")
    with pytest.warns(ll.LamplighterWarning, match="c"):
        assert ll.allocate(weights, 0.5, first_come) == {"a": 10, "b": 5, "c": 0}
    assert seen == {"names": ["a", "b", "c"], "shapes": dict.fromkeys("abc", (2, 5)), "keep": 15}
