"""Weights that share memory, and evidence asked for wrongly: refused with a hint, nothing changed."""

import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lamplighter as ll
from lamplighter.memory import check_apart
from lamplighter.targets import find_layers


def refused(given, match, **options):
    """Both `allocate` and `prune` refuse, and no entry of `given` has changed."""
    tensors = given.state_dict() if isinstance(given, nn.Module) else given
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for function in (ll.allocate, ll.prune):
        with pytest.raises(ll.LamplighterError, match=match) as caught:
            function(given, 0.5, **options)
        assert caught.value.hint
    assert all(torch.equal(tensors[name], value) for name, value in before.items())
    return caught.value


def ramp(*shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)


# ---------------------------------------------------------------------------------------------------- shared memory


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(6, 4), nn.Linear(4, 6)
        self.dec.weight = nn.Parameter(self.enc.weight.t())


def test_a_transposed_view_of_another_weight_is_refused_naming_both():
    model = Autoencoder()
    error = refused(model, r"layers dec\.weight and enc\.weight share memory")
    assert "exclude='enc.weight'" in error.hint
    masks = ll.prune(model, 0.5, exclude="enc.weight")
    assert masks.keys() == {"dec.weight"}
    assert torch.equal(model.enc.weight != 0, masks["dec.weight"].t())


def test_a_weight_that_overlaps_itself_is_refused():
    refused({"w": ramp(7).as_strided((4, 4), (1, 1))}, "entries of w share memory")
    refused({"w": ramp(7).as_strided((2, 4), (3, 1))}, "entries of w share memory")
    refused({"w": ramp(4).expand(3, 4)}, r"entries of w share memory \(an expanded tensor\)")


@pytest.mark.parametrize(
    "weight",
    [
        ramp(4, 4).t(),
        ramp(4, 6)[::2, 1::3],
        ramp(8).as_strided((2, 4), (4, 1)),
        ramp(2, 3, 4, 4).to(memory_format=torch.channels_last),
        ramp(6).as_strided((1, 6, 1), (0, 1, 0)),
        ramp(1).expand(1, 1),
    ],
    ids=lambda weight: f"{tuple(weight.shape)}-{weight.stride()}",
)
def test_strides_that_keep_entries_apart_are_allowed(weight):
    assert ll.allocate({"w": weight}, 0.5) == {"w": weight.numel() - round(weight.numel() / 2)}


def overlaps():
    x = ramp(8, 8)
    flat = x.view(-1)
    yield "contains", flat, flat[4:12]
    yield "overlaps", flat[:20], flat[19:]
    yield "reshaped", x, flat
    yield "columns", x[:, :5], x[:, 4:]
    yield "alternate", x[:, ::2], x[:, 2::4]
    yield "crossing", x[:, 3], x[3]
    yield "diagonal", x.diagonal(), x[7:]
    yield "bytes", flat[:3], flat.view(torch.float16)[5:9]
    yield "numpy", torch.from_numpy(x.numpy()), torch.from_numpy(x.numpy()[3:])


@pytest.mark.parametrize(("a", "b"), [pytest.param(a, b, id=name) for name, a, b in overlaps()])
def test_weights_that_share_entries_are_refused(a, b):
    assert refused({"a": a, "b": b, "c": ramp(3)}, "layers a and b share memory").hint.count("exclude='b'") == 1
    refused({"a": b, "b": a, "c": ramp(3)}, "layers a and b share memory")


def neighbours():
    x, z = ramp(8, 8), ramp(3, 4, 6)
    flat = x.view(-1)
    yield "halves", [flat[:32], flat[32:]]
    yield "alternate", [x[:, ::2], x[:, 1::2]]
    yield "columns", [x[:, :3], x[:, 3:5], x[:, 5:]]
    yield "rows", [x[::3], x[1::3], x[2::3]]
    yield "checkers", [x[::2, ::2], x[1::2, 1::2], x[::2, 1::2], x[1::2, ::2]]
    yield "transposed", [x[:4].t(), x[4:]]
    yield "fused", [*z.permute(1, 0, 2)[:2], z[:, 2:].transpose(1, 2)]
    yield "triangle", [x.diagonal(), x.diagonal(1), x.diagonal(-1)]
    yield "empty", [x, flat[3:3]]


@pytest.mark.parametrize("parts", [pytest.param(parts, id=name) for name, parts in neighbours()])
def test_weights_that_lie_among_each_other_without_sharing_entries_count_each(parts):
    weights = {f"part{place}": part for place, part in enumerate(parts)}
    budgets = ll.allocate(weights, 0.0)
    assert budgets == {name: part.numel() for name, part in weights.items()}


def test_equal_views_count_once_and_stay_allowed():
    x = ramp(4, 4)
    assert ll.allocate({"a": x.t(), "b": x.t()}, 0.5) == {"a": 8}


def test_experts_of_one_stack_lie_among_each_other():
    stack = ramp(5, 4, 6).permute(1, 0, 2)
    assert sum(ll.allocate({"mlp.experts.down_proj": stack}, 0.5).values()) == 60
    refused({"mlp.experts.down_proj": stack, "other": stack[2]}, r"mlp\.experts\.down_proj\[2\] and other share")


def test_thousands_of_weights_in_one_memory_are_compared_fast():
    weights = {f"w{place}": part for place, part in enumerate(ramp(1 << 18).chunk(1 << 12))}
    start = time.perf_counter()
    layers = find_layers(weights)
    check_apart([(layer, layer.weight) for layer in layers])
    assert time.perf_counter() - start < 5  # each with each would take minutes


# ---------------------------------------------------------------------------------------- evidence and scores


def net():
    return nn.Sequential(nn.Linear(4, 3))


PAIRS = [(torch.ones(2, 4), torch.tensor([0, 2]))]


@pytest.mark.parametrize("given", [{"a": torch.ones(2, 2)}, None, nn.Linear], ids=["mapping", "none", "class"])
def test_evidence_is_collected_from_a_module_only(given):
    with pytest.raises(ll.LamplighterError, match=r"gradients got a \w+ as its model, expected a Module") as caught:
        ll.gradients(given, PAIRS, F.cross_entropy)
    assert caught.value.hint
    with pytest.raises(ll.LamplighterError, match=r"input_norms got a \w+ as its model, expected a Module") as caught:
        ll.input_norms(given, [torch.ones(2, 4)])
    assert caught.value.hint


@pytest.mark.parametrize("batches", [3, None, 0.5, "train", {"input": torch.ones(2, 4)}], ids=str)
def test_batches_come_one_after_the_other(batches):
    for collect in (lambda: ll.gradients(net(), batches, F.cross_entropy), lambda: ll.input_norms(net(), batches)):
        with pytest.raises(ll.LamplighterError, match=f"batches is a {type(batches).__name__}, expected") as caught:
            collect()
        assert "[batch]" in caught.value.hint


def test_a_dataset_without_an_iterator_is_a_loader_too():
    class Dataset:
        def __getitem__(self, place):
            return PAIRS[place]

    assert ll.gradients(net(), Dataset(), F.cross_entropy).keys() == {"0.weight"}


@pytest.mark.parametrize("loss", [None, "cross_entropy", 3.0])
def test_a_loss_is_a_function(loss):
    with pytest.raises(ll.LamplighterError, match=f"loss is a {type(loss).__name__}, expected a function") as caught:
        ll.gradients(net(), PAIRS, loss)
    assert "loss(output, target)" in caught.value.hint


@pytest.mark.parametrize("function", [ll.allocate, ll.prune])
def test_a_score_that_works_in_place_changes_nothing_by_itself(function):
    model = net()
    before = model[0].weight.detach().clone()
    masks = function(model, 0.5, score=lambda name, weight, evidence: weight.abs_())
    kept = masks["0.weight"] if function is ll.prune else torch.ones(3, 4)
    assert torch.equal(model[0].weight, before * kept)
