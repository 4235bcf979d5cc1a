"""load_packed: a model's own parameters filled, all or none, with masks to train on with."""

import copy

import pytest
import torch
from torch import nn

import lamplighter as ll
from lamplighter.checkpoint.packed_codec import CHUNK
from packed_samples import same_bits, sparse


class Net(nn.Module):
    """Convolution, norm with buffers, experts in one parameter, a head tied to an embedding."""

    def __init__(self, seed=0, width=24):
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.experts = nn.Module()
        self.experts.down_proj = nn.Parameter(torch.randn(3, 20, 21))
        self.embed = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.fc = nn.Linear(width, 40)


def pruned(seed=0, sparsity=0.8, **options):
    model = Net(seed)
    return model, ll.prune(model, sparsity=sparsity, **options)


def same_state(one, other):
    mine, others = one.state_dict(), other.state_dict()
    return mine.keys() == others.keys() and all(same_bits(mine[name], others[name]) for name in mine)


def test_a_model_comes_back_into_its_own_parameters(tmp_path):
    model, masks = pruned()
    ll.pack(model, tmp_path / "p.safetensors")
    again = Net(1)
    places = {name: tensor.data_ptr() for name, tensor in again.state_dict().items()}
    parameters = dict(again.named_parameters())
    loaded = ll.load_packed(again, tmp_path / "p.safetensors")
    assert same_state(again, model)
    assert loaded == masks
    assert {name: tensor.data_ptr() for name, tensor in again.state_dict().items()} == places
    assert all(parameter is parameters[name] for name, parameter in again.named_parameters())
    assert all(parameter.requires_grad for parameter in again.parameters())
    assert again.head.weight is again.embed.weight


def test_training_goes_on_with_the_masks_and_a_later_round_too(tmp_path):
    model, _ = pruned()
    ll.pack(model, tmp_path / "p.safetensors")
    again = Net(1)
    masks = ll.load_packed(again, tmp_path / "p.safetensors")
    optimizer = torch.optim.Adam(again.parameters(), lr=0.1)
    masks.hold(optimizer)
    again.fc(torch.randn(5, 24)).square().sum().backward()
    optimizer.step()
    assert not again.fc.weight[~masks["fc.weight"]].any()
    assert not torch.equal(again.fc.weight, model.fc.weight)
    later = ll.prune(again, sparsity=0.9, masks=masks)
    assert (later & masks) == later


def test_a_layer_that_was_too_dense_to_be_packed_has_its_mask(tmp_path):
    model = nn.Linear(64, 64).bfloat16()
    masks = ll.prune(model, sparsity=0.02)
    assert ll.pack(model, tmp_path / "p.safetensors").sparse == 0
    assert ll.load_packed(nn.Linear(64, 64).bfloat16(), tmp_path / "p.safetensors") == masks


def test_biases_that_are_zero_are_not_masked(tmp_path):
    model = nn.Sequential(nn.Linear(64, 1000), nn.BatchNorm1d(1000))
    assert not model[1].bias.any()
    ll.prune(model, sparsity=0.5)
    ll.pack(model, tmp_path / "p.safetensors")
    assert list(ll.load_packed(copy.deepcopy(model), tmp_path / "p.safetensors")) == ["0.weight"]


def test_include_and_exclude_choose_the_masks(tmp_path):
    model, masks = pruned(include="fc*")
    ll.pack(model, tmp_path / "p.safetensors")
    assert ll.load_packed(Net(1), tmp_path / "p.safetensors", include="fc*") == masks
    left = ll.load_packed(Net(1), tmp_path / "p.safetensors", exclude=["conv*", "experts*"])
    assert list(left) == ["fc.weight"]
    with pytest.raises(ll.LamplighterError, match="matches no parameter"):
        ll.load_packed(Net(1), tmp_path / "p.safetensors", include="nothing*")


def test_a_model_without_prunable_weights_has_no_masks(tmp_path):
    ll.pack(nn.LayerNorm(1000), tmp_path / "p.safetensors")
    assert len(ll.load_packed(nn.LayerNorm(1000), tmp_path / "p.safetensors")) == 0


def test_tensors_in_other_memory_formats_are_filled(tmp_path):
    model = nn.Conv2d(64, 64, 3)
    ll.prune(model, sparsity=0.9)
    ll.pack(model.to(memory_format=torch.channels_last), tmp_path / "p.safetensors")
    again = nn.Conv2d(64, 64, 3).to(memory_format=torch.channels_last)
    masks = ll.load_packed(again, tmp_path / "p.safetensors")
    assert torch.equal(again.weight, model.weight)
    assert again.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(masks["weight"], model.weight != 0)


def test_negative_zeros_are_kept_by_the_masks(tmp_path):
    model = nn.Linear(64, 64, bias=False)
    with torch.no_grad():
        model.weight.zero_()[3, 5] = -0.0
    ll.pack(model, tmp_path / "p.safetensors")
    masks = ll.load_packed(nn.Linear(64, 64, bias=False), tmp_path / "p.safetensors")
    assert masks["weight"].nonzero().tolist() == [[3, 5]]


def test_checkpoints_that_were_pruned_on_disk_load_too(tmp_path):
    ll.pack(Net(), tmp_path / "dense.safetensors")
    ll.unpack(tmp_path / "dense.safetensors", tmp_path / "a.safetensors")
    ll.prune_checkpoint(tmp_path / "a.safetensors", tmp_path / "b.safetensors", sparsity=0.7)
    ll.pack(tmp_path / "b.safetensors", tmp_path / "p.safetensors")
    model, masks = pruned(sparsity=0.7)
    again = Net(1)
    assert ll.load_packed(again, tmp_path / "p.safetensors") == masks
    assert same_state(again, model)


def test_large_tensors_are_filled_by_several_threads(tmp_path):
    tensors = {"weight": sparse(torch.float32, 8, CHUNK // 3 + 11)}
    ll.pack(tensors, tmp_path / "p.safetensors")
    for threads in (1, 3):
        again = nn.Linear(CHUNK // 3 + 11, 8, bias=False)
        ll.load_packed(again, tmp_path / "p.safetensors", threads=threads)
        assert same_bits(again.weight.detach(), tensors["weight"])


def test_a_compiled_or_wrapped_model_is_looked_through(tmp_path):
    model, masks = pruned()
    wrapped = nn.DataParallel(model)
    ll.pack(wrapped, tmp_path / "p.safetensors")
    assert ll.load_packed(nn.DataParallel(Net(1)), tmp_path / "p.safetensors") == masks


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop("norm.running_var"), "does not hold norm.running_var"),
        (lambda tensors: tensors.update(extra=torch.ones(3)), "holds extra, which the model does not have"),
        (lambda tensors: tensors.update({"fc.bias": torch.ones(41)}), r"'fc.bias' is F32 of shape \[41\]"),
        (lambda tensors: tensors.update({"fc.bias": torch.ones(40).half()}), "'fc.bias' is F16"),
    ],
    ids=["missing", "extra", "shape", "dtype"],
)
def test_what_does_not_fit_is_refused_before_anything_changes(tmp_path, change, said):
    tensors = dict(pruned()[0].state_dict())
    change(tensors)
    ll.pack(tensors, tmp_path / "p.safetensors")
    again, untouched = Net(1), Net(1)
    with pytest.raises(ll.LamplighterError, match=said):
        ll.load_packed(again, tmp_path / "p.safetensors")
    assert same_state(again, untouched)


def test_without_strict_what_only_one_has_stays_as_it_is(tmp_path):
    tensors = dict(pruned()[0].state_dict())
    del tensors["norm.running_var"]
    ll.pack(tensors | {"extra": torch.ones(3)}, tmp_path / "p.safetensors")
    again = Net(1)
    again.norm.running_var.fill_(7)
    ll.load_packed(again, tmp_path / "p.safetensors", strict=False)
    assert torch.equal(again.fc.weight, tensors["fc.weight"])
    assert again.norm.running_var.unique().tolist() == [7]


def test_names_of_tied_weights_are_needed_once(tmp_path):
    model, _ = pruned()
    ll.pack(model, tmp_path / "p.safetensors")
    assert "head.weight" not in ll.Checkpoint(tmp_path / "p.safetensors")
    ll.pack(dict(model.state_dict()), tmp_path / "twice.safetensors")
    assert "head.weight" in ll.Checkpoint(tmp_path / "twice.safetensors")
    for name in ("p", "twice"):
        again = Net(1)
        ll.load_packed(again, tmp_path / f"{name}.safetensors")
        assert same_state(again, model)


def test_a_model_without_values_is_refused(tmp_path):
    ll.pack(pruned()[0], tmp_path / "p.safetensors")
    with torch.device("meta"):
        hollow = Net()
    with pytest.raises(ll.LamplighterError, match="on meta"):
        ll.load_packed(hollow, tmp_path / "p.safetensors")


def test_state_that_is_no_tensor_is_refused(tmp_path):
    class Odd(nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

    with pytest.raises(ll.LamplighterError, match="'_extra_state', a dict"):
        ll.pack(Odd(2, 2), tmp_path / "p.safetensors")


def test_a_file_that_is_not_packed_is_refused(tmp_path):
    ll.pack(nn.Linear(2, 2), tmp_path / "p.safetensors")
    ll.unpack(tmp_path / "p.safetensors", tmp_path / "a.safetensors")
    with pytest.raises(ll.LamplighterError, match="not a packed file"):
        ll.load_packed(nn.Linear(2, 2), tmp_path / "a.safetensors")


@pytest.mark.gpu
def test_a_model_on_a_gpu_comes_back(tmp_path):
    model, masks = pruned()
    ll.pack(model.cuda(), tmp_path / "p.safetensors")
    again = Net(1).cuda()
    loaded = ll.load_packed(again, tmp_path / "p.safetensors")
    assert same_state(again.cpu(), model.cpu())
    assert all(torch.equal(loaded[name].cpu(), masks[name].cpu()) for name in masks)
