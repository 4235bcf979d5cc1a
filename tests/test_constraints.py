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


def hundreds(*names):
    return {name: torch.arange(1.0, 101.0).view(10, 10) for name in names}


def test_a_full_name_beats_globs():
    weights = hundreds("1.weight", "2.weight")
    for order in (["2.weight", "*"], ["*", "2.weight"]):
        asked = {key: {"2.weight": 0.1, "*": 0.9}[key] for key in order}
        assert ll.allocate(weights, 0.5, "uniform", max_density=asked) == {"1.weight": 90, "2.weight": 10}
        asked = {key: {"2.weight": 0.8, "*": 0.1}[key] for key in order}
        assert ll.allocate(weights, 0.5, "uniform", min_density=asked) == {"1.weight": 20, "2.weight": 80}
        asked = {key: {"2.weight": 0.3, "*": 0.7}[key] for key in order}
        assert ll.allocate(weights, 0.5, "uniform", densities=asked) == {"1.weight": 70, "2.weight": 30}


def test_the_full_name_of_an_expert_beats_globs():
    weights = {"experts.down_proj": torch.randn(2, 10, 10, generator=torch.Generator().manual_seed(0))}
    asked = {"experts.down_proj[1]": 0.3, "*": 0.7}
    assert ll.allocate(weights, 0.5, densities=asked) == {"experts.down_proj[0]": 70, "experts.down_proj[1]": 30}


def test_a_full_name_stands_for_itself_even_if_it_reads_as_a_glob():
    assert ll.allocate(hundreds("a[x]", "ax"), 0.5, densities={"a[x]": 0.3}) == {"a[x]": 30, "ax": 70}


def test_of_globs_the_last_that_matches_counts():
    weights = hundreds("1.weight", "2.weight")
    for option in ("densities", "max_density"):
        budgets = ll.allocate(weights, 0.5, "uniform", **{option: {"2.*": 0.1, "*t": 0.5}})
        assert budgets == {"1.weight": 50, "2.weight": 50}
        budgets = ll.allocate(weights, 0.7, "uniform", **{option: {"*t": 0.5, "2.*": 0.1}})
        assert budgets == {"1.weight": 50, "2.weight": 10}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"min_density": 0.2, "densities": {"b": 0.1}}, "b at 3 of its 32 .* allow 7 to 32: 4 weights too few"),
        ({"min_density": {"b": 0.2}, "densities": {"*": 0.1}}, "b at 3 of its 32 .* allow 7 to 32: 4 weights too few"),
        ({"max_density": 0.5, "densities": {"b": 0.6}}, "b at 19 of its 32 .* allow 0 to 16: 3 weights too many"),
        ({"max_density": 0.5, "densities": {"b": 0.53}}, "b at 17 of its 32 .* allow 0 to 16: 1 weight too many"),
    ],
    ids=str,
)
@pytest.mark.parametrize("pattern", [None, "row", "2:4"])
def test_fixed_densities_keep_to_the_least_and_the_largest(options, told, pattern):
    weights = {name: torch.randn(4, 8, generator=torch.Generator().manual_seed(0)) for name in ("a", "b")}
    for function in (ll.allocate, ll.prune):
        with pytest.raises(ll.LamplighterError, match=told) as caught:
            function(weights, 0.5, pattern=pattern, **options)
        assert caught.value.hint


def test_rounding_does_not_make_equal_densities_contradict_each_other():
    weights = {name: torch.arange(1.0, 33.0).view(4, 8) for name in ("a", "b")}
    # 3.2 of 32: at least 4, at most 3, and the nearest is 3.
    assert ll.allocate(weights, 0.5, "uniform", min_density=0.1, densities={"b": 0.1}) == {"a": 28, "b": 4}
    assert ll.allocate(weights, 0.5, "uniform", max_density={"b": 0.1}, densities={"b": 0.1}) == {"a": 29, "b": 3}
    # 11.52 of 32: at most 11, and the nearest is 12.
    assert ll.allocate(weights, 0.5, "uniform", densities={"b": 0.36}) == {"a": 20, "b": 12}
    assert ll.allocate(weights, 0.5, "uniform", max_density={"b": 0.36}, densities={"b": 0.36}) == {"a": 21, "b": 11}
    with pytest.raises(ll.LamplighterError, match="b should keep at least 4 and at most 3 weights: 1 weights too many"):
        ll.allocate(weights, 0.5, min_density=0.1, max_density={"b": 0.1}, densities={"b": 0.1})


def test_a_fixed_density_above_what_is_alive_is_an_error():
    weights = tens("a", "b")
    masks = ll.prune(weights, 0.5, "uniform")
    with pytest.raises(ll.LamplighterError, match="b should keep at least 8 and at most 5 weights: 3 weights"):
        ll.allocate(weights, 0.6, densities={"b": 0.8}, masks=masks)


@pytest.mark.parametrize("option", ["min_density", "max_density", "densities"])
@pytest.mark.parametrize("key", [0, None, ("a", "b"), b"a"])
def test_a_density_whose_key_is_no_text_is_an_error(option, key):
    for function in (ll.allocate, ll.prune):
        with pytest.raises(ll.LamplighterError, match=rf"{option} names .*{type(key).__name__}") as caught:
            function(tens("a", "b"), 0.5, **{option: {key: 0.5}})
        assert f"{option}={{'a': 0.1}}" in caught.value.hint


@pytest.mark.parametrize("huge", [10**400, -(10**400), 10**5000], ids=["400 digits", "negative", "5000 digits"])
def test_numbers_too_large_for_a_float_are_out_of_range(huge):
    for options in ({}, {"min_density": huge}, {"densities": {"a": huge}}):
        with pytest.raises(ll.LamplighterError, match="expected a number from 0 to 1") as caught:
            ll.prune(tens("a", "b"), 0.5 if options else huge, **options)
        assert len(caught.value.message) < 120


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


def ladder(layers):
    return {f"block.{place}.weight": torch.full((2, 5), 2.0**-place) for place in range(layers)}


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        (4, "3 of 4 layers are left without any weight: block.1.weight, block.2.weight, block.3.weight"),
        (31, "30 of 31 layers .*: block.1.weight, block.2.weight, block.3.weight and 27 more"),
    ],
)
def test_a_warning_of_many_layers_names_three(layers, told):
    with pytest.warns(ll.LamplighterWarning, match=rf"^{told}$") as caught:
        ll.allocate(ladder(layers), 1 - 1 / layers, "global")
    assert caught[0].filename == __file__


def test_only_layers_that_lose_their_last_weight_are_warned_of():
    weights = ladder(3)
    with pytest.warns(ll.LamplighterWarning, match=r"1 of 3 .*: block\.2\.weight$"):
        masks = ll.prune(weights, 0.5, "global")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ll.prune(weights, 0.6, "global", masks=masks)
        ll.prune(weights, 0.6, "global")  # without masks: the layer is all zeros
    with pytest.warns(ll.LamplighterWarning, match=r"1 of 3 .*: block\.1\.weight$"):
        ll.prune(weights, 0.8, "global")


def test_weights_that_score_nothing_are_weights_all_the_same():
    def score(name, weight, evidence):
        return weight.abs() * (name == "a")

    with pytest.warns(ll.LamplighterWarning, match=r"1 of 2 .*: b$"):
        ll.allocate(tens("a", "b"), 0.5, score=score)


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
