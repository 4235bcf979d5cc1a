"""Rounds: what is pruned when, that nothing revives, rewinding, and that mistakes are found before anything happens."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.evidence import gradients
from lamplighter.masks import Masks
from lamplighter.pruning import prune
from lamplighter.schedules import cubic, geometric, linear, one_shot
from lamplighter.training.rewinding import restore, snapshot
from lamplighter.training.rounds import rounds

SIZE = 4 * 6 + 6 * 3


class Net(nn.Module):
    """Two layers, batch norm, and a buffer that `state_dict` leaves out."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.second = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, inputs):
        self.calls += 1
        return self.second(torch.relu(self.norm(self.first(inputs))))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.05)


def batches(count=3):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(count)
    ]


def train(model, optimizer, count=3):
    for inputs, target in batches(count):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), target).backward()
        optimizer.step()


def assert_same_state(model, saved):
    state = snapshot(model)
    assert state.keys() == saved.keys()
    for name, value in saved.items():
        assert torch.equal(state[name], value), name


def assert_masked(model, masks):
    for name, mask in masks.items():
        assert not model.get_parameter(name)[~mask].any()
        assert model.get_parameter(name)[mask].all()


# -------------------------------------------------------------------------------------------------------------- pruning


def test_the_dense_phase_comes_first_then_one_for_each_pruning(model):
    before = snapshot(model)
    seen = []
    for each in rounds(model, schedule=geometric(0.5), count=3):
        if each.index == 0:
            assert_same_state(model, before)
        assert each.budgets == each.masks.kept
        assert sum(each.budgets.values()) == SIZE - round(each.sparsity * SIZE)
        assert_masked(model, each.masks)
        seen.append((each.index, each.sparsity, each.density))
    assert seen == [(0, 0.0, 1.0), (1, 0.5, 0.5), (2, 0.75, 0.25), (3, 0.875, 0.125)]


def test_rounds_prune_as_prune_does_round_after_round(model):
    reference, masks = copy.deepcopy(model), None
    optimizers = adam(model), adam(reference)
    for each in rounds(model, optimizers[0], schedule=[0.3, 0.6], method="erk", exclude="*.bias"):
        if each.index:
            masks = prune(reference, each.sparsity, "erk", masks=masks, exclude="*.bias")
            masks.hold(optimizers[1])
            assert masks == each.masks
        train(model, optimizers[0])
        train(reference, optimizers[1])
        assert_same_state(model, snapshot(reference))


def test_by_default_a_fifth_of_the_survivors_goes_each_round(model):
    assert [each.sparsity for each in rounds(model, count=2)] == [0.0, geometric()(1), geometric()(2)]


def test_pruned_weights_stay_pruned_through_training_and_later_rounds(model):
    optimizer, before = adam(model), None
    for each in rounds(model, optimizer, schedule=linear(0.9, 3), count=3):
        train(model, optimizer)
        assert_masked(model, each.masks)
        if before is not None:
            assert (before & each.masks) == each.masks
        before = each.masks


def test_nothing_revives_however_the_ranking_changes(model):
    seeds, before = iter(range(3)), None
    for each in rounds(model, schedule=geometric(0.3), count=3, score="random", evidence=lambda model: next(seeds)):
        if before is not None:
            assert (before & each.masks) == each.masks
        before = each.masks


def test_without_an_optimizer_the_caller_holds_the_masks_on_a_new_one_each_round(model):
    for each in rounds(model, schedule=geometric(0.5), count=3):
        optimizer = adam(model)
        each.masks.hold(optimizer)
        train(model, optimizer)
        assert_masked(model, each.masks)
        # Earlier masks have let go: a hook of theirs would stay for good.
        assert len(model.first.weight._post_accumulate_grad_hooks) == 1


def test_the_masks_of_the_dense_phase_keep_everything(model):
    dense = next(rounds(model, schedule=[0.5], exclude="second.*"))
    assert dense.budgets == {"first.weight": 24}
    assert (dense.sparsity, dense.masks.density, dense.masks.sparsity) == (0.0, 1.0, 0.0)
    assert dense.masks == Masks({"first.weight": torch.ones(6, 4, dtype=torch.bool)})


def test_holding_the_masks_of_the_dense_phase_changes_nothing_of_the_training(model):
    free = copy.deepcopy(model)
    optimizer = adam(model)
    next(rounds(model, schedule=[0.5])).masks.hold(optimizer)
    train(model, optimizer)
    train(free, adam(free))
    assert_same_state(model, snapshot(free))


def test_what_was_held_in_the_dense_phase_is_let_go_when_pruning(model):
    for each in rounds(model, schedule=[0.5]):
        if each.index == 0:
            each.masks.hold(adam(model))
    assert not model.first.weight._post_accumulate_grad_hooks


def test_layers_that_are_computed_from_others_are_told_once_and_not_before_pruning(model):
    torch.nn.utils.parametrizations.weight_norm(model.first)
    phases = rounds(model, schedule=[0.5])
    assert list(next(phases).masks) == ["second.weight"]
    with pytest.warns(LamplighterWarning, match="left out"):
        next(phases)


@pytest.mark.parametrize("schedule", [one_shot(0.9), cubic(0.9, 3), linear(0.9, 4, initial=0.3, begin=2)])
def test_without_a_count_pruning_goes_on_until_the_schedule_stays_where_it_is(model, schedule):
    seen = [(each.index, each.sparsity) for each in rounds(model, adam(model), schedule=schedule, method="lamp")]
    assert seen[1:] == [(index, schedule(index)) for index in range(1, len(seen))]
    assert [sparsity == 0.9 for _, sparsity in seen] == [False] * (len(seen) - 1) + [True]


@pytest.mark.filterwarnings("ignore:.*without any weight")
def test_without_a_schedule_and_count_a_fifth_goes_each_round_until_nothing_is_left(model):
    seen = list(rounds(model))
    assert [each.sparsity for each in seen] == [geometric()(index) for index in range(len(seen))]
    assert [each.masks.total_kept for each in seen[-2:]] == [1, 0]


def test_with_a_count_rounds_go_on_when_nothing_is_left(model):
    assert [each.masks.total_kept for each in rounds(model, schedule=one_shot(1.0), count=2)] == [SIZE, 0, 0]


def test_a_loop_without_a_count_can_be_broken_off_before_what_its_options_forbid(model):
    phases = rounds(model, min_density=0.5)
    assert [round(next(phases).sparsity, 2) for _ in range(4)] == [0.0, 0.2, 0.36, 0.49]
    with pytest.raises(LamplighterError, match="densit"):
        next(phases)


def test_numbers_of_numpy_are_numbers(model):
    schedule = np.linspace(0.25, 0.75, 3, dtype=np.float32)
    assert [each.sparsity for each in rounds(model, schedule=schedule)] == [0.0, 0.25, 0.5, 0.75]
    assert len(list(rounds(model, schedule=one_shot(np.float32(0.9)), count=np.int64(2)))) == 3


def test_one_shot_prunes_once(model):
    assert [each.sparsity for each in rounds(model, schedule=one_shot(0.9), count=1)] == [0.0, 0.9]


def test_evidence_is_collected_anew_before_each_pruning(model):
    seen = []

    def collect(given):
        assert given is model
        seen.append(snapshot(model))
        return gradients(model, batches(), F.cross_entropy)

    for each in rounds(model, schedule=[0.5, 0.8], score="snip", evidence=collect):
        train(model, adam(model))
        each.masks.apply(model)
    assert len(seen) == 2
    assert torch.equal(seen[1]["first.weight"] == 0, ~Masks(prune_copy(seen[0], 0.5))["first.weight"])


def prune_copy(state, sparsity):
    model = Net()
    restore(model, state)
    return dict(prune(model, sparsity, score="snip", evidence=gradients(model, batches(), F.cross_entropy)))


def test_evidence_that_is_no_function_is_used_as_it_is(model):
    evidence = gradients(model, batches(), F.cross_entropy)
    expected = prune(copy.deepcopy(model), 0.5, score="snip", evidence=evidence)
    *_, last = rounds(model, schedule=[0.5], score="snip", evidence=evidence)
    assert last.masks == expected


def test_earlier_masks_are_gone_on_from(model):
    earlier = prune(copy.deepcopy(model), 0.5)
    optimizer = adam(model)
    phases = rounds(model, optimizer, schedule=[0.5, 0.75], masks=earlier)
    first = next(phases)
    assert (first.index, first.sparsity, first.masks) == (0, 0.5, earlier)
    train(model, optimizer)
    assert_masked(model, earlier)
    for each in phases:
        assert (earlier & each.masks) == each.masks
        train(model, optimizer)
        assert_masked(model, each.masks)


# ------------------------------------------------------------------------------------------------------------ rewinding


def rewound_to(state, masks):
    """What a state looks like once the masks are applied to it."""
    masked = {name: value.clone() for name, value in state.items()}
    for name, mask in masks.items():
        masked[name][~mask] = 0
    return masked


def test_rewinding_to_initialisation_returns_everything_and_ranks_what_was_trained(model):
    initial, optimizer, masks = snapshot(model), adam(model), None
    trained = None
    for each in rounds(model, optimizer, schedule=geometric(0.5), count=2, rewind="init"):
        if each.index:
            masks = prune(trained, each.sparsity, masks=masks)
            assert each.masks == masks
            assert_same_state(model, rewound_to(initial, masks))
        train(model, optimizer)
        assert_masked(model, each.masks)
        assert model.calls.item() == 3
        trained = copy.deepcopy(model)
    assert not torch.equal(trained.norm.running_mean, initial["norm.running_mean"])


def test_rewinding_to_a_saved_step(model):
    optimizer = adam(model)
    for each in rounds(model, optimizer, schedule=[0.5, 0.8], rewind="saved"):
        if each.index == 0:
            train(model, optimizer, 2)
            each.save_rewind_point()
            saved = snapshot(model)
        else:
            assert_same_state(model, rewound_to(saved, each.masks))
        train(model, optimizer)


def test_rewinding_keeps_the_parameters_themselves(model):
    parameters = [id(parameter) for parameter in model.parameters()]
    optimizer = adam(model)
    for _ in rounds(model, optimizer, schedule=[0.5], rewind="init"):
        train(model, optimizer)
    assert [id(parameter) for parameter in model.parameters()] == parameters


def test_without_rewinding_weights_go_on_from_where_they_are(model):
    phases, optimizer = rounds(model, schedule=[0.5]), adam(model)
    dense = next(phases)
    dense.save_rewind_point()  # of no consequence here
    train(model, optimizer)
    trained = snapshot(model)
    assert_same_state(model, rewound_to(trained, next(phases).masks))


def test_a_rewind_point_that_was_never_saved_is_an_error_that_changes_nothing(model):
    phases = rounds(model, schedule=[0.5], rewind="saved")
    next(phases)
    train(model, adam(model))
    before = snapshot(model)
    with pytest.raises(LamplighterError, match="no rewind point was saved"):
        next(phases)
    assert_same_state(model, before)


def test_a_rewind_point_can_be_saved_in_the_dense_phase_only(model):
    phases = rounds(model, schedule=[0.5], rewind="saved")
    next(phases).save_rewind_point()
    with pytest.raises(LamplighterError, match="dense phase only"):
        next(phases).save_rewind_point()


def test_restoring_leaves_alone_what_cannot_be_written_to(model):
    model.register_buffer("positions", torch.zeros(1).expand(5))
    saved = snapshot(model)
    train(model, adam(model))
    restore(model, saved)
    assert_same_state(model, saved)


@pytest.mark.parametrize("change", ["shape", "gone"])
def test_a_model_that_has_become_another_cannot_be_rewound(model, change):
    saved = snapshot(model)
    if change == "shape":
        model.norm.running_mean = torch.zeros(7)
    else:
        del model.norm.running_mean
    before = snapshot(model)
    with pytest.raises(LamplighterError, match=r"cannot rewind: 'norm\.running_mean'"):
        restore(model, saved)
    assert_same_state(model, before)


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schedule": [0.5, 0.3]}, r"goes down, from sparsity 0\.5 to 0\.3 in round 2"),
        ({"schedule": lambda index: 1 / index, "count": 3}, "goes down"),
        ({"schedule": [0.5, 1.5]}, r"asks for sparsity 1\.5 in round 2"),
        ({"schedule": [float("nan")]}, "asks for sparsity nan"),
        ({"schedule": ["0.5"]}, "asks for sparsity '0.5'"),
        ({"schedule": []}, "lists 0 sparsities"),
        ({"schedule": [0.5], "count": 2}, "lists 1 sparsities, and count is 2"),
        ({"schedule": 0.5}, "schedule is 0.5; expected a function"),
        ({"schedule": lambda index: 1 - 1 / (index + 1)}, "count is None, and the schedule has not reached"),
        ({"schedule": [0.0, 0.1].__getitem__}, "does not say where it ends"),
        ({"min_density": 0.9}, "densit"),
        ({"count": 0}, "count is 0"),
        ({"count": 2.0}, "count is 2.0"),
        ({"count": 2, "rewind": "start"}, "rewind is 'start'"),
        ({"count": 2, "method": "lmap"}, "unknown method 'lmap'"),
        ({"count": 2, "score": "magnitud"}, "unknown score 'magnitud'"),
        ({"count": 2, "score": ["snip"]}, "expected a name or a function"),
        ({"count": 2, "score": "snip"}, "score 'snip' needs evidence"),
        ({"count": 2, "score": "wanda", "evidence": {"first.weight": torch.ones(4)}}, r"second\.weight"),
        ({"count": 2, "exclude": "third.*"}, r"exclude pattern 'third\.\*' matches no parameter"),
        ({"count": 20, "min_density": 0.5}, "densit"),
        ({"schedule": [0.25], "masks": "half"}, "still alive"),
        ({"count": 1, "optimizer": 3}, "optimizer is a int"),
        ({"count": 1, "optimizer": "foreign"}, r"does not train first\.weight, second\.weight"),
    ],
    ids=str,
)
def test_mistakes_are_found_at_once_and_change_nothing(model, options, said):
    options = dict(options)
    if "masks" in options:
        options["masks"] = prune(copy.deepcopy(model), 0.5)
    if options.get("optimizer") == "foreign":
        options["optimizer"] = adam(Net())
    before = snapshot(model)
    with pytest.raises(LamplighterError, match=said) as raised:
        rounds(model, **options)
    assert raised.value.hint
    assert_same_state(model, before)


@pytest.mark.parametrize("option", ["min_densty", "sparsity", "weights_or_model"])
def test_options_that_prune_does_not_have_are_refused(model, option):
    with pytest.raises(TypeError, match=option):
        rounds(model, count=1, **{option: 0.5})


@pytest.mark.parametrize("given", [3, {"weight": torch.ones(4, 4)}, Net], ids=["number", "mapping", "class"])
def test_a_model_is_needed(given):
    with pytest.raises(LamplighterError, match="expected a Module") as raised:
        rounds(given, count=1)
    assert "Module that you train" in raised.value.hint
