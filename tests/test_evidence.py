"""Evidence: gradients and input norms against direct computation, and that nothing of the model changes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lamplighter.errors import LamplighterError
from lamplighter.evidence import gradients, input_norms


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def pairs(count=3, size=5):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 4, generator=generator), torch.randint(0, 3, (size,), generator=generator))
        for _ in range(count)
    ]


def everything(model):
    """All that must not change: values, gradients, flags and hooks."""
    return (
        {name: value.clone() for name, value in model.state_dict().items()},
        {name: None if each.grad is None else each.grad.clone() for name, each in model.named_parameters()},
        {name: each.requires_grad for name, each in model.named_parameters()},
        {name: module.training for name, module in model.named_modules()},
        {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in model.named_modules()},
    )


def assert_unchanged(model, before):
    after = everything(model)
    for ours, theirs in zip(before, after, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            same = torch.equal(value, theirs[name]) if isinstance(value, torch.Tensor) else value == theirs[name]
            assert same, name


# ------------------------------------------------------------------------------------------------------------ gradients


def test_gradients_are_the_mean_over_batches():
    model, batches = net(), pairs()
    found = gradients(model, batches, F.cross_entropy)
    assert list(found) == ["0.weight", "3.weight"]
    expected = copy.deepcopy(model)
    sum(F.cross_entropy(expected(inputs), target) for inputs, target in batches).div(3).backward()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected.get_parameter(name).grad)
        assert gradient.dtype == torch.float32
        assert not gradient.requires_grad


def test_gradients_leave_the_model_as_it_was():
    model = net()
    model(torch.randn(5, 4)).sum().backward()
    model[0].weight.requires_grad_(False)
    model[3].bias.requires_grad_(False)
    model[1].eval()
    model[1].training = True
    before = everything(model)
    found = gradients(model, pairs(), F.cross_entropy)
    assert_unchanged(model, before)
    assert found["0.weight"].any()


def test_gradients_leave_no_trace_when_the_loss_fails():
    model = net().eval()
    model[0].weight.requires_grad_(False)
    before = everything(model)

    def failing(model, batch):
        model.train()
        model(batch[0])
        raise KeyError("no")

    with pytest.raises(KeyError):
        gradients(model, pairs(), failing)
    assert_unchanged(model, before)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evidence_can_be_collected_where_gradients_are_off(mode):
    model, batches = net(), pairs()
    with mode():
        found = gradients(model, batches, F.cross_entropy)
        assert list(input_norms(model, batches)) == list(found)
    assert torch.equal(found["0.weight"], gradients(model, batches, F.cross_entropy)["0.weight"])


def test_batches_may_be_lists_mappings_or_whatever_the_loss_takes():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net().eval()

        def forward(self, inputs, target=None):
            return self.inner(inputs)

    model, batches = Named(), pairs()
    first = gradients(model, batches, F.cross_entropy)
    named = [{"inputs": inputs, "target": target} for inputs, target in batches]
    triples = [(inputs, target, "more") for inputs, target in batches]
    for other in (
        gradients(model, [list(pair) for pair in batches], nn.CrossEntropyLoss()),
        gradients(model, named, lambda output, batch: F.cross_entropy(output, batch["target"])),
        gradients(model, triples, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])),
        gradients(model, (batch for batch in batches), F.cross_entropy),
    ):
        assert all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("batch", [torch.ones(2, 4), (torch.ones(2, 4),), (1, 2, 3), None])
def test_a_batch_of_another_form_is_refused(batch):
    with pytest.raises(LamplighterError, match="expected a pair") as caught:
        gradients(net(), [batch], F.cross_entropy)
    assert "loss(model, batch)" in caught.value.hint


@pytest.mark.parametrize(
    "loss",
    [lambda output, target: 3.0, lambda output, target: output, lambda output, target: output.sum().detach()],
    ids=["number", "not scalar", "detached"],
)
def test_a_loss_must_be_one_number_that_depends_on_the_weights(loss):
    with pytest.raises(LamplighterError, match="the loss is"):
        gradients(net(), pairs(), loss)


def test_no_batches_are_an_error():
    model = net()
    with pytest.raises(LamplighterError, match="no batches"):
        gradients(model, [], F.cross_entropy)
    with pytest.raises(LamplighterError, match="no batches"):
        input_norms(model, iter(()))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_weight_the_loss_does_not_use_has_zeros():
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    found = gradients(model, [None], lambda model, batch: model["used"](torch.ones(1, 2)).sum())
    assert found["used.weight"].tolist() == [[1.0, 1.0]]
    assert found["unused.weight"].tolist() == [[0.0, 0.0]]


def test_gradients_of_16_bit_weights_are_float32_and_of_64_bit_weights_float64():
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        model = nn.Linear(2, 1, dtype=dtype)
        found = gradients(model, [(torch.ones(1, 2, dtype=dtype), None)], lambda output, target: output.sum())
        assert found["weight"].dtype == expected


def test_gradients_of_tied_weights_add_up():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    inputs = torch.randn(4, 3)
    found = gradients(model, [(inputs, None)], lambda output, target: output.square().sum())
    assert list(found) == ["0.weight"]
    model(inputs).square().sum().backward()
    torch.testing.assert_close(found["0.weight"], model[0].weight.grad)


def test_include_chooses_other_parameters():
    found = gradients(net(), pairs(), F.cross_entropy, include="*.bias", exclude="1.*")
    assert list(found) == ["0.bias", "3.bias"]


def test_experts_of_a_stack_share_one_gradient():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.Parameter(torch.randn(2, 3, 4))

    model = Experts()
    found = gradients(model, [None], lambda model, batch: model.experts[1].sum())
    assert list(found) == ["experts"]
    assert found["experts"].sum((1, 2)).tolist() == [0.0, 12.0]


@pytest.mark.parametrize("part", ["whole", "inside"])
def test_compiled_models_give_what_plain_ones_give(part):
    model, batches = net(), pairs()
    expected, norms = gradients(model, batches, F.cross_entropy), input_norms(model, [b[0] for b in batches])
    if part == "whole":
        compiled = torch.compile(model, backend="eager")
    else:
        compiled = copy.deepcopy(model)
        compiled[3] = torch.compile(compiled[3], backend="eager")
    with torch.no_grad():
        compiled.eval()(batches[0][0])
    compiled.train()
    found = gradients(compiled, batches, F.cross_entropy)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert found.keys() == expected.keys()
    seen = input_norms(compiled, [b[0] for b in batches])
    assert all(torch.equal(seen[name], norms[name]) for name in norms)
    assert seen.keys() == norms.keys()


# ---------------------------------------------------------------------------------------------------------- input norms


def test_input_norms_of_a_linear_layer_run_over_batches_and_positions():
    model = nn.Linear(4, 2)
    batches = [torch.randn(3, 5, 4), torch.randn(2, 4), torch.randn(4)]
    expected = torch.cat([batch.reshape(-1, 4) for batch in batches]).norm(dim=0)
    found = input_norms(model, batches)["weight"]
    torch.testing.assert_close(found, expected)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_input_norms_of_convolutions_are_per_input_channel_of_each_group(dims, groups):
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    model = kind(4, 8, 2, groups=groups)
    batches = [torch.randn(3, 4, *[3] * dims), torch.randn(4, *[3] * dims)]
    channels = torch.cat([batch.transpose(-dims - 1, 0).reshape(4, -1) for batch in batches], dim=1).norm(dim=1)
    found = input_norms(model, batches)["weight"].expand(model.weight.shape)
    per_group = 4 // groups
    for out in range(8):
        group = out // (8 // groups)
        for place in range(per_group):
            torch.testing.assert_close(found[out, place], channels[group * per_group + place].expand(found.shape[2:]))


@pytest.mark.parametrize("groups", [1, 2])
def test_input_norms_of_transposed_convolutions_lie_on_their_first_axis(groups):
    model, batch = nn.ConvTranspose2d(4, 6, 2, groups=groups), torch.randn(3, 4, 5, 5)
    found = input_norms(model, [batch])["weight"].expand(model.weight.shape)
    torch.testing.assert_close(found[:, 0, 0, 0], batch.transpose(0, 1).reshape(4, -1).norm(dim=1))


def test_input_norms_of_hugging_face_conv1d_lie_on_its_first_axis():
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    model, batch = nn.Sequential(conv1d(5, 3)), torch.randn(2, 7, 3)
    found = input_norms(model, [batch])["0.weight"]
    assert found.shape == (3, 1)
    torch.testing.assert_close(found[:, 0], batch.reshape(-1, 3).norm(dim=0))


def test_input_norms_do_not_lose_small_inputs_among_many():
    # In float32, adding 1 to 2^24 changes nothing.
    batches = [torch.full((1, 1), 4096.0), *[torch.ones(1, 1)] * 100]
    assert (
        input_norms(nn.Linear(1, 1), batches)["weight"].item() == torch.tensor(4096.0**2 + 100).double().sqrt().float()
    )


def test_a_module_called_twice_and_weights_shared_by_two_add_up():
    shared = nn.Linear(3, 3, bias=False)
    inputs = torch.randn(4, 3)
    expected = torch.cat([inputs, shared(inputs).detach()]).norm(dim=0)
    torch.testing.assert_close(input_norms(nn.Sequential(shared, shared), [inputs])["0.weight"], expected)
    other = nn.Linear(3, 3, bias=False)
    other.weight = shared.weight
    torch.testing.assert_close(input_norms(nn.Sequential(shared, other), [inputs])["0.weight"], expected)


def test_input_norms_take_what_loaders_give():
    model, batches = net(), pairs()
    first = input_norms(model, [inputs for inputs, _ in batches])
    for other in (batches, [[inputs] for inputs, _ in batches], [{"input": inputs} for inputs, _ in batches]):
        assert all(torch.equal(first[name], each) for name, each in input_norms(model, other).items())


def test_layers_called_by_keyword_are_seen():
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, given):
            return self.layer(input=given)

    batch = torch.randn(4, 3)
    torch.testing.assert_close(input_norms(Keyword(), [batch])["layer.weight"], batch.norm(dim=0))


def test_input_norms_leave_the_model_as_it_was():
    model = net()
    before = everything(model)
    input_norms(model, pairs())
    assert_unchanged(model, before)
    with pytest.raises(RuntimeError):
        input_norms(model, [torch.ones(2, 4), torch.ones(2, 9)])
    assert_unchanged(model, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_looking_at_inputs_does_not_change_them(dtype):
    model, batch = nn.Linear(2, 2, dtype=dtype), torch.full((1, 2), 3.0, dtype=dtype)
    assert input_norms(model, [batch])["weight"].tolist() == [3.0, 3.0]
    assert batch.tolist() == [[3.0, 3.0]]


def test_buffers_that_are_replaced_come_back():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("calls", torch.zeros(()), persistent=False)

        def forward(self, given):
            self.calls = self.calls + 1
            return self.layer(given)

    model = Counting()
    calls = model.calls
    input_norms(model, [torch.ones(1, 2)])
    assert model.calls is calls
    assert calls.item() == 0


def test_layers_that_are_not_called_have_no_entry():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    found = input_norms(model, [torch.randn(2, 5, 8)])
    assert set(found) == {"linear1.weight", "linear2.weight"}


def test_a_layer_the_model_does_not_use_has_no_entry():
    class Half(nn.ModuleDict):
        def forward(self, given):
            return self["used"](given)

    model = Half({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    assert list(input_norms(model, [torch.ones(1, 2)])) == ["used.weight"]


# ------------------------------------------------------------------------------------------------- include and exclude


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"include": "0.*eight"}, ["0.weight"]),
        ({"exclude": "0.*"}, ["3.weight"]),
        ({"include": ["*weight"], "exclude": ["1.*", "3.*"]}, ["0.weight"]),
    ],
)
def test_both_collectors_take_include_and_exclude(options, expected):
    model, batches = net().eval(), pairs()
    norms, whole = input_norms(model, batches, **options), input_norms(model, batches)
    assert list(norms) == expected == list(gradients(model, batches, F.cross_entropy, **options))
    assert all(torch.equal(each, whole[name]) for name, each in norms.items())


def test_norms_can_be_collected_of_weights_beside_others_that_cannot_be_pruned():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].register_buffer("weight_int8", torch.zeros(2, 2, dtype=torch.int8))
    with pytest.raises(LamplighterError, match="weight_int8"):
        input_norms(model, [torch.ones(1, 2)])
    assert list(input_norms(model, [torch.ones(1, 2)], exclude="1.*")) == ["0.weight"]
