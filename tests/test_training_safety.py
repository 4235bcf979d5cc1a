"""Held masks in training: pruned weights stay exactly 0, the others train as with masking written out by hand."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune as torch_prune

import lamplighter as ll
from masked_training import (
    STEPS,
    Recipe,
    Tied,
    assert_pruned_gradients_are_zero,
    assert_pruned_weights_are_zero,
    assert_same,
    batches,
    convolutional,
    linear,
    moved,
    train,
    train_held,
    train_masked,
    twin,
)

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=1e-3),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2, weight_decay=0.01),
    "adafactor foreach": lambda p: torch.optim.Adafactor(p, lr=1e-2, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9),
    "lion-like rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
}
MATRIX_OPTIMIZERS = OPTIMIZERS | {"muon": lambda p: torch.optim.Muon(p, lr=1e-2)}

RECIPES = {
    "plain": Recipe(),
    "clipped": Recipe(clip=0.05),
    "accumulated": Recipe(accumulate=3),
    "accumulated and clipped, gradients zeroed in place": Recipe(accumulate=2, clip=0.05, set_to_none=False),
    "autocast bfloat16": Recipe(autocast=torch.bfloat16),
    "scaled": Recipe(scale=1024.0),
    "autocast float16, scaled and clipped": Recipe(autocast=torch.float16, scale=256.0, clip=0.1),
}


def compare(model, make, recipe=RECIPES["plain"], *, sparsity=0.8, method="lamp", trained=None):
    """Prune, hold and train `model` beside its explicitly masked twin. Returns the model and its masks."""
    masks = ll.prune(model, sparsity, method)
    reference = twin(model)
    start = twin(model)
    flags = dict(masks)
    optimizer = make(filter_trained(model, trained))
    assert masks.hold(optimizer) is None
    train_held(model, optimizer, flags, recipe)
    train_masked(reference, make(filter_trained(reference, trained)), flags, recipe)
    assert_same(model, reference)
    assert set(flags) & set(moved(model, start))
    return model, masks, optimizer


def assert_free(model):
    """Nothing holds any weight: the model trains as a copy of it that never saw a mask."""
    free = twin(model)
    for each in (model, free):
        train(each, torch.optim.SGD(each.parameters(), lr=0.05), Recipe(), lambda: None, lambda: None, steps=3)
    assert_same(model, free)


def filter_trained(model, trained):
    return [parameter for name, parameter in model.named_parameters() if trained is None or trained(name)]


@pytest.mark.parametrize("make", MATRIX_OPTIMIZERS.values(), ids=MATRIX_OPTIMIZERS)
def test_every_optimizer_trains_as_the_masked_reference(make):
    compare(linear(), make)


@pytest.mark.parametrize("name", ["sgd momentum", "adam", "adamw foreach", "adamw fused", "adafactor"])
def test_convolutions_and_norms_train_as_the_masked_reference(name):
    compare(convolutional(), OPTIMIZERS[name])


@pytest.mark.parametrize("name", ["sgd momentum", "adamw fused", "adafactor", "muon"])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_recipe_trains_as_the_masked_reference(name, recipe):
    compare(linear(), MATRIX_OPTIMIZERS[name], recipe)


@pytest.mark.parametrize("method", ["global", "uniform", "erk"])
def test_every_method_is_held(method):
    compare(convolutional(), OPTIMIZERS["adam"], method=method)


def test_half_precision_weights_are_held():
    model = linear().to(torch.bfloat16)
    masks = ll.prune(model, 0.8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    masks.hold(optimizer)
    start = twin(model)
    train_held(model, optimizer, dict(masks), RECIPES["plain"], forward=nn.Sequential(Cast(torch.bfloat16), model))
    assert moved(model, start)


class Cast(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, inputs):
        return inputs.to(self.dtype)


def test_channels_last_weights_are_held():
    model = convolutional().to(memory_format=torch.channels_last)
    compare(model, OPTIMIZERS["sgd momentum"])
    assert model[3].weight.is_contiguous(memory_format=torch.channels_last)


def test_masking_after_the_step_alone_would_not_have_been_enough():
    """The reference tells gradient masking from its absence: under clipping the norms differ."""
    model = linear()
    masks = dict(ll.prune(model, 0.8))
    other = twin(model)

    def mask_weights():
        with torch.no_grad():
            for name, mask in masks.items():
                other.get_parameter(name).mul_(mask)

    recipe = RECIPES["clipped"]
    train_masked(model, torch.optim.SGD(model.parameters(), lr=0.05), masks, recipe)
    train(other, torch.optim.SGD(other.parameters(), lr=0.05), recipe, lambda: None, mask_weights)
    assert moved(model, other)


def test_a_used_optimizer_whose_momentum_pushes_is_held():
    model = linear(bias=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train(model, optimizer, Recipe(), lambda: None, lambda: None, steps=5)
    masks = ll.prune(model, 0.8)
    reference = twin(model)
    other = torch.optim.Adam(reference.parameters(), lr=1e-2)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    masks.hold(optimizer)
    train_held(model, optimizer, dict(masks), Recipe())
    train_masked(reference, other, dict(masks), Recipe())
    assert_same(model, reference)


def test_an_infinite_gradient_of_a_pruned_weight_becomes_zero():
    model = nn.Linear(3, 1, bias=False)
    masks = ll.prune({"weight": model.weight}, 1 / 3)
    (pruned,) = (~masks["weight"]).flatten().nonzero().flatten().tolist()
    masks.hold(torch.optim.SGD(model.parameters(), lr=0.1))
    for value in (float("inf"), -float("inf"), float("nan")):
        inputs = torch.ones(1, 3)
        inputs[0, pruned] = value
        model.weight.grad = None
        (model.weight * inputs).sum().backward()
        assert model.weight.grad[0, pruned] == 0
        assert model.weight.grad.sum() == 2


def test_skipped_steps_of_a_grad_scaler_change_nothing():
    model = linear()
    masks = ll.prune(model, 0.8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    masks.hold(optimizer)
    before = twin(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e30)
    for images, labels in batches(2):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(images) * 1e10, labels)).backward()
        assert_pruned_gradients_are_zero(model, dict(masks))
        scaler.step(optimizer)
        scaler.update()
    assert moved(model, before) == []


def test_the_closure_of_an_optimizer_sees_masked_gradients():
    model = linear()
    masks = ll.prune(model, 0.8)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    masks.hold(optimizer)
    before = twin(model)
    for images, labels in batches(3):

        def closure(images=images, labels=labels):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            assert_pruned_gradients_are_zero(model, dict(masks))
            return loss

        optimizer.step(closure)
        assert_pruned_weights_are_zero(model, dict(masks))
    assert moved(model, before)


def test_an_average_of_the_weights_stays_sparse():
    model = linear(bias=True)
    masks = ll.prune(model, 0.8)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    masks.hold(optimizer)
    train(
        model,
        optimizer,
        Recipe(),
        lambda: None,
        lambda: (average.update_parameters(model), assert_pruned_weights_are_zero(average.module, dict(masks))),
    )
    assert set(masks) <= set(moved(average.module, model))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_model_is_pruned_and_held(backend):
    torch._dynamo.reset()
    model, reference = linear(bias=True), linear(bias=True)
    compiled = torch.compile(model, backend=backend)
    masks = ll.prune(compiled, 0.8)
    assert all("_orig_mod" not in name for name in masks)
    ll.prune(reference, 0.8)
    optimizer = torch.optim.AdamW(compiled.parameters(), lr=1e-2)
    masks.hold(optimizer)
    train_held(model, optimizer, dict(masks), Recipe(), forward=compiled)
    other = torch.compile(reference, backend=backend)
    train_masked(reference, torch.optim.AdamW(reference.parameters(), lr=1e-2), dict(masks), Recipe(), forward=other)
    assert_same(model, reference)
    torch._dynamo.reset()


def test_holding_before_compiling_works_as_well():
    torch._dynamo.reset()
    model = linear(bias=True)
    masks = ll.prune(model, 0.8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    masks.hold(optimizer)
    train_held(model, optimizer, dict(masks), Recipe(), forward=torch.compile(model, backend="aot_eager"))
    torch._dynamo.reset()


def test_a_compiled_optimizer_step_is_held():
    torch._dynamo.reset()
    model = linear()
    masks = ll.prune(model, 0.8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    masks.hold(optimizer)
    start = twin(model)
    step = torch.compile(optimizer.step, backend="eager")
    for images, labels in batches(3):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        assert_pruned_gradients_are_zero(model, dict(masks))
        step()
        assert_pruned_weights_are_zero(model, dict(masks))
    assert moved(model, start)
    torch._dynamo.reset()


def test_a_deep_copy_is_free_and_the_original_stays_held():
    model = linear()
    masks = ll.prune(model, 0.8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    masks.hold(optimizer)
    free = copy.deepcopy(model)
    assert_same(free, model)
    assert_pruned_weights_are_zero(free, dict(masks))
    before = twin(model)
    train(free, torch.optim.Adam(free.parameters(), lr=1e-2), Recipe(), lambda: None, lambda: None, steps=3)
    assert moved(model, before) == []
    assert any(free.get_parameter(name)[~mask].any() for name, mask in masks.items())
    train_held(model, optimizer, dict(masks), Recipe())


def test_masks_apply_to_and_hold_a_deep_copy():
    model = linear()
    masks = ll.prune(model, 0.8)
    other = ll.Masks(dict(masks))
    copied = copy.deepcopy(model)
    other.apply(copied)
    optimizer = torch.optim.Adam(copied.parameters(), lr=1e-2)
    other.hold(optimizer)
    train_held(copied, optimizer, dict(masks), Recipe())


def test_a_state_dict_round_trip_keeps_names_values_and_the_hold():
    model = convolutional()
    names = list(model.state_dict())
    masks = ll.prune(model, 0.8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    masks.hold(optimizer)
    train_held(model, optimizer, dict(masks), Recipe())
    saved, steps = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    assert list(saved) == names
    fresh = convolutional()
    fresh.load_state_dict(saved)
    assert_same(fresh, model)
    train_held(model, optimizer, dict(masks), Recipe())
    after = twin(model)
    model.load_state_dict(saved)
    optimizer.load_state_dict(steps)
    train_held(model, optimizer, dict(masks), Recipe())
    assert_same(model, after)


def test_a_dense_state_that_is_loaded_is_pruned_again_by_the_next_step():
    model, dense = linear(), linear()
    masks = ll.prune(model, 0.8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    masks.hold(optimizer)
    model.load_state_dict(dense.state_dict())
    train_held(model, optimizer, dict(masks), Recipe())


def test_a_held_model_is_saved_whole_and_no_module_has_hooks():
    model = linear()
    masks = ll.prune(model, 0.8)
    masks.hold(torch.optim.SGD(model.parameters(), lr=0.05))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    assert_same(torch.load(buffer, weights_only=False), model)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
        assert not list(module.buffers(recurse=False))


def test_frozen_layers_stay_as_they_were_pruned():
    model = linear(bias=True)
    model[1].requires_grad_(False)
    masks = ll.prune(model, 0.8)
    frozen_before = model[1].weight.clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    masks.hold(optimizer)
    train_held(model, optimizer, dict(masks), Recipe())
    assert torch.equal(model[1].weight, frozen_before)
    assert "1.weight" in masks


def test_frozen_layers_need_not_belong_to_the_optimizer():
    model = linear()
    model[1].weight.requires_grad_(False)
    compare(model, OPTIMIZERS["sgd momentum"], trained=lambda name: name != "1.weight")


def test_a_layer_that_is_unfrozen_later_is_held_too():
    model = linear()
    model[1].weight.requires_grad_(False)
    masks = ll.prune(model, 0.8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    masks.hold(optimizer)
    train_held(model, optimizer, dict(masks), Recipe())
    model[1].weight.requires_grad_(True)
    start = twin(model)
    train_held(model, optimizer, dict(masks), Recipe())
    assert "1.weight" in moved(model, start)


def test_tied_weights_count_once_and_are_held():
    model = Tied()
    masks = ll.prune(model, 0.8)
    assert set(masks) == {"enter.weight", "one.weight", "leave.weight"}
    assert masks.total == 64 * 16 + 16 * 16 + 16 * 10
    compare(Tied(), OPTIMIZERS["adam"])
    tied, _, _ = compare(Tied(), OPTIMIZERS["sgd momentum"], RECIPES["accumulated"])
    assert tied.one.weight is tied.two.weight


def test_release_lets_pruned_weights_move_again():
    model, masks, optimizer = compare(linear(), OPTIMIZERS["adam"])
    masks.release()
    train(model, optimizer, Recipe(), lambda: None, lambda: None, steps=3)
    for name, mask in masks.items():
        assert model.get_parameter(name)[~mask].any()
        assert model.get_parameter(name).grad is None


def test_after_release_training_is_plain_training():
    model = linear()
    masks = ll.prune(model, 0.8)
    other = twin(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    masks.hold(optimizer)
    masks.release()
    masks.release()
    train(model, optimizer, Recipe(), lambda: None, lambda: None)
    train(other, torch.optim.Adam(other.parameters(), lr=1e-2), Recipe(), lambda: None, lambda: None)
    assert_same(model, other)


def test_holding_twice_is_holding_once():
    model = linear()
    masks = ll.prune(model, 0.8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    masks.hold(optimizer)
    masks.hold(optimizer)
    train_held(model, optimizer, dict(masks), Recipe())
    masks.release()
    assert_free(model)


def test_a_later_round_replaces_the_hold_of_the_first():
    model, first, optimizer = compare(linear(), OPTIMIZERS["sgd momentum"], sparsity=0.5)
    second = ll.prune(model, 0.8, masks=first)
    second.hold(optimizer)
    train_held(model, optimizer, dict(second), Recipe())
    second.release()
    assert_free(model)


def test_fewer_masks_replace_the_hold_of_more():
    model, first, optimizer = compare(linear(), OPTIMIZERS["sgd momentum"], sparsity=0.8)
    fewer = ll.Masks({name: mask | (torch.arange(mask.shape[1]) % 2 == 0) for name, mask in first.items()})
    fewer.apply(model)
    fewer.hold(optimizer)
    train_held(model, optimizer, dict(fewer), Recipe())
    assert all(model.get_parameter(name)[~mask].any() for name, mask in first.items())
    fewer.release()
    assert_free(model)


def test_a_new_optimizer_for_each_round_is_held():
    model, masks = linear(), None
    for density in (0.8, 0.5, 0.2):
        masks = ll.prune(model, 1 - density, masks=masks)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        masks.hold(optimizer)
        train_held(model, optimizer, dict(masks), Recipe())
    masks.release()
    assert_free(model)


def test_a_hold_of_fewer_weights_with_a_new_optimizer_replaces_the_old_one():
    model, first, _ = compare(linear(), OPTIMIZERS["sgd momentum"], sparsity=0.8)
    reference = twin(model)
    fewer = ll.Masks({name: mask | (torch.arange(mask.shape[1]) % 2 == 0) for name, mask in first.items()})
    fewer.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    fewer.hold(optimizer)
    train_held(model, optimizer, dict(fewer), Recipe())
    train_masked(reference, torch.optim.SGD(reference.parameters(), lr=0.05), dict(fewer), Recipe())
    assert_same(model, reference)


def test_what_was_replaced_neither_masks_nor_releases():
    model, first, old = compare(linear(), OPTIMIZERS["sgd momentum"], sparsity=0.8)
    fewer = ll.Masks({name: mask | (torch.arange(mask.shape[1]) % 2 == 0) for name, mask in first.items()})
    fewer.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    fewer.hold(optimizer)
    train_held(model, optimizer, dict(fewer), Recipe())
    old.zero_grad()
    old.step()
    assert all(model.get_parameter(name)[~mask].any() for name, mask in first.items())
    first.release()
    train_held(model, optimizer, dict(fewer), Recipe())
    with torch.no_grad():
        model[1].weight.add_(1)
    optimizer.step()
    assert_pruned_weights_are_zero(model, dict(fewer))


def test_masks_of_different_layers_are_held_on_one_optimizer():
    model = linear()
    masks = [ll.prune(model, 0.8, include=f"{layer}.weight") for layer in (1, 3)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for each in masks:
        each.hold(optimizer)
    train_held(model, optimizer, dict(masks[0]) | dict(masks[1]), Recipe())
    for each in masks:
        each.release()
    assert_free(model)


def test_weights_that_moved_before_they_were_held_return_to_zero_at_once():
    model = linear()
    masks = ll.prune(model, 0.8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(model, optimizer, Recipe(), lambda: None, lambda: None, steps=2)
    assert any(model.get_parameter(name)[~mask].any() for name, mask in masks.items())
    masks.hold(optimizer)
    assert_pruned_weights_are_zero(model, dict(masks))


def test_what_no_longer_holds_anything_is_let_go():
    model, masks = linear(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for sparsity in (0.2, 0.5, 0.8):
        masks = ll.prune(model, sparsity, masks=masks)
        masks.hold(optimizer)
    assert len(optimizer._optimizer_step_post_hooks) == 1


def test_a_refused_hold_leaves_the_one_that_was_there():
    model = linear()
    masks = ll.prune(model, 0.8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    masks.hold(optimizer)
    with pytest.raises(ll.LamplighterError):
        masks.hold(torch.optim.Adam(linear().parameters(), lr=1e-2))
    train_held(model, optimizer, dict(masks), Recipe())


def test_loaded_masks_hold_after_apply(tmp_path):
    model = linear()
    ll.prune(model, 0.8).save(tmp_path / "masks.safetensors")
    masks = ll.Masks.load(tmp_path / "masks.safetensors")
    masks.apply(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    masks.hold(optimizer)
    train_held(model, optimizer, dict(masks), Recipe())


def test_an_optimizer_for_the_matrices_and_another_for_the_rest():
    model = linear(bias=True)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() != 2]
    masks = ll.prune(model, 0.8)
    optimizer, rest = torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(others, lr=1e-2)
    masks.hold(optimizer)
    for images, labels in batches(STEPS):
        F.cross_entropy(model(images), labels).backward()
        assert_pruned_gradients_are_zero(model, dict(masks))
        optimizer.step()
        rest.step()
        assert_pruned_weights_are_zero(model, dict(masks))
        optimizer.zero_grad()
        rest.zero_grad()


def hold_in_parts(model, masks, optimizers):
    """The masks of each optimizer's weights held on that optimizer alone."""
    for optimizer, matrices in zip(optimizers, (True, False), strict=True):
        part = ll.Masks({name: mask for name, mask in masks.items() if (name == "6.weight") == matrices})
        part.apply(model)
        part.hold(optimizer)


def hold_together(model, masks, optimizers):
    masks.hold(*optimizers)


@pytest.mark.parametrize("hold", [hold_in_parts, hold_together])
def test_masks_of_layers_that_two_optimizers_train_are_held_on_both(hold):
    model = convolutional()
    matrices, others = [model[6].weight], [p for p in model.parameters() if p is not model[6].weight]
    masks = ll.prune(model, 0.8)
    optimizers = [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(others, lr=1e-2)]
    hold(model, masks, optimizers)
    before = twin(model)
    for images, labels in batches(STEPS):
        F.cross_entropy(model(images), labels).backward()
        assert_pruned_gradients_are_zero(model, dict(masks))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        assert_pruned_weights_are_zero(model, dict(masks))
    assert set(masks) <= set(moved(model, before))


def test_masks_held_on_two_optimizers_are_released_from_both():
    model = convolutional()
    matrices, others = [model[6].weight], [p for p in model.parameters() if p is not model[6].weight]
    masks = ll.prune(model, 0.8)
    masks.hold(torch.optim.Muon(matrices), torch.optim.AdamW(others))
    masks.release()
    assert_free(model)


def test_parametrized_weights_are_left_out_with_a_warning_that_names_them():
    model = linear()
    nn.utils.parametrizations.weight_norm(model[1])
    nn.utils.parametrizations.spectral_norm(model[3])
    before = twin(model)
    with pytest.warns(ll.LamplighterWarning, match=r"1\.weight") as caught:
        masks = ll.prune(model, 0.5)
    assert "3.weight" in " ".join(str(warning.message) for warning in caught)
    assert set(masks) == {"5.weight"}
    assert moved(model, before) == ["5.weight"]


def test_modules_pruned_by_torch_are_left_out_with_a_warning():
    model = linear()
    torch_prune.l1_unstructured(model[1], "weight", 0.5)
    with pytest.warns(ll.LamplighterWarning, match=r"1\.weight"):
        masks = ll.prune(model, 0.5)
    assert set(masks) == {"3.weight", "5.weight"}
