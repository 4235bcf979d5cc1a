"""What other tools have pruned, read from files that their own packages wrote."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import prune as torch_prune
from typer.testing import CliRunner

import lamplighter as ll
from lamplighter.cli.app import app
from lamplighter.migration.reading import describe
from lamplighter.migration.writing import plain_config

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def same_bits(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bytes(one), _bytes(other))


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def _bytes(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def pruned_model(dtype=torch.float32, seed=0):
    """Several kinds of pruning by torch, repeated and structured ones and one of a bias among them."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.MultiheadAttention(16, 2),
        nn.Linear(16, 4),
    ).to(dtype)
    torch_prune.ln_structured(model[0], "weight", 0.25, n=2, dim=0)
    torch_prune.l1_unstructured(model[3], "weight", 0.4)
    torch_prune.random_unstructured(model[3], "weight", 0.3)  # a container of two methods
    torch_prune.l1_unstructured(model[3], "bias", 0.5)
    torch_prune.l1_unstructured(model[4], "in_proj_weight", 0.5)
    return model


PRUNED = {"0.weight", "3.weight", "3.bias", "4.in_proj_weight"}
LAYERS = {*PRUNED, "4.out_proj.weight", "5.weight"}


def effective(model):
    """The weights that the model computes with, by their own names, with 0 for the product's -0."""
    found = {}
    for path, module in model.named_modules():
        for name in [*dict(module.named_parameters(recurse=False)), *dict(module.named_buffers(recurse=False))]:
            plain = name.removesuffix("_orig")
            if not name.endswith("_mask"):
                value = getattr(module, plain).detach().clone()
                if plain != name:
                    value[value == 0] = 0
                found[f"{path}.{plain}"] = value
    return found


def original_masks(model):
    return {name.removesuffix("_mask"): value.bool() for name, value in model.state_dict().items() if "_mask" in name}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_live_model_keeps_every_weight_it_computed_with(dtype):
    model = pruned_model(dtype)
    expected, masks = effective(model), original_masks(model)
    parameters = {name.removesuffix("_orig"): parameter for name, parameter in model.named_parameters()}
    places = {name: parameter.data_ptr() for name, parameter in parameters.items()}
    found = ll.adopt(model)
    state = model.state_dict()
    assert state.keys() == expected.keys()
    assert all(same_bits(state[name], value) for name, value in expected.items())
    assert all(torch.equal(found[name], masks[name]) for name in PRUNED)
    assert set(found) == LAYERS
    assert all(model.get_parameter(name) is parameter for name, parameter in parameters.items())
    assert all(parameter.data_ptr() == places[name] for name, parameter in model.named_parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_an_adopted_model_computes_the_same_and_trains_on_with_its_optimizer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    torch_prune.global_unstructured(
        [(model[0], "weight"), (model[2], "weight")], torch_prune.L1Unstructured, amount=0.8
    )
    optimizer, inputs = torch.optim.AdamW(model.parameters(), lr=0.1), torch.randn(4, 8)
    model(inputs).sum().backward()
    optimizer.step()
    before = model(inputs)
    masks = ll.adopt(model)
    assert torch.equal(model(inputs), before)
    masks.hold(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()
    assert {name: int(model.get_parameter(name).count_nonzero()) for name in masks} == masks.kept
    assert masks.total_kept == masks.total - round(0.8 * masks.total)
    later = ll.prune(model, 0.9, masks=masks)  # a later round goes on from there
    assert all(bool((masks[name] | ~later[name]).all()) for name in masks)


def test_a_module_that_is_used_twice_is_adopted_once():
    shared = torch_prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5)
    masks = ll.adopt(nn.Sequential(shared, nn.ReLU(), shared))
    assert masks.kept == {"0.weight": 8}


def test_models_that_cannot_be_adopted_are_left_alone():
    with pytest.raises(ll.LamplighterError, match=r"nothing in the model is pruned by torch\.nn\.utils\.prune"):
        ll.adopt(nn.Linear(3, 3))
    for spoil, message in (
        (lambda layer: layer.weight_mask.fill_(0.5), "other values than 0 and 1"),
        (lambda layer: layer.weight_orig.data.fill_(float("inf")), "NaN or infinite"),
    ):
        model = nn.Sequential(*(torch_prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5) for _ in range(2)))
        spoil(model[1])
        with pytest.raises(ll.LamplighterError, match=rf"1\.weight: .*{message}"):
            ll.adopt(model)
        assert set(model.state_dict()) == {
            f"{i}.{name}" for i in (0, 1) for name in ("bias", "weight_orig", "weight_mask")
        }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("suffix", [".pt", ".ckpt", ".safetensors"])
def test_state_dicts_of_torchs_pruning_come_back_dense(tmp_path, dtype, suffix):
    model, path, out = pruned_model(dtype), tmp_path / f"pruned{suffix}", tmp_path / "dense.safetensors"
    state, expected, masks = model.state_dict(), effective(model), original_masks(model)
    if suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save({"state_dict": state, "epoch": 3} if suffix == ".ckpt" else state, path)
    read, found = ll.read_sparse(path)
    done = ll.migrate(path, out)
    assert done.kinds == {"torch.nn.utils.prune": 4, "plain": len(expected) - 4}
    for given in (read, ll.read_sparse(state)[0], load_file(out)):
        assert given.keys() == expected.keys()
        assert all(same_bits(given[name], value) for name, value in expected.items())
    assert set(found) == LAYERS
    assert all(torch.equal(found[name], masks[name]) for name in PRUNED)
    assert ll.Masks.load(tmp_path / "dense.masks.safetensors") == found
    assert describe(path) == "torch.nn.utils.prune: 4 tensors"
    assert describe(out) is None
    # The masks fit a model that never heard of masks.
    fresh = pruned_model(dtype, seed=5)
    ll.adopt(fresh)
    fresh.load_state_dict(load_file(out))
    found.apply(fresh)
    assert all(same_bits(fresh.state_dict()[name], value) for name, value in expected.items())


def test_the_sparsifiers_of_torch_are_read_once_they_are_squashed(tmp_path):
    """Their checkpoints do not hold the masks; what they leave when they are done are zeros."""
    from torch.ao.pruning import WeightNormSparsifier

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    sparsifier = WeightNormSparsifier(sparsity_level=0.5, sparse_block_shape=(1, 4), zeros_per_block=2)
    sparsifier.prepare(model, [{"tensor_fqn": "0.weight"}])
    sparsifier.step()
    mask = model[0].parametrizations.weight[0].mask.bool()
    assert not any("mask" in name for name in model.state_dict())
    sparsifier.squash_mask()
    _, masks = ll.read_sparse(model.state_dict())
    assert torch.equal(masks["0.weight"], mask)
    assert masks.kept["2.weight"] == 16


def test_other_parametrizations_are_none_of_our_business():
    layer = torch.nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))
    state, masks = ll.read_sparse({**layer.state_dict(), "other.weight": torch.ones(2, 2)})
    assert set(state) == {*layer.state_dict(), "other.weight"}
    assert list(masks) == ["other.weight"]


def test_without_masks_what_is_not_zero_is_kept(tmp_path):
    parts = {"embed": nn.Embedding(4, 8), "in": nn.Linear(8, 8), "norm": nn.LayerNorm(8), "out": nn.Linear(8, 2)}
    model = nn.ModuleDict(parts)
    expected = ll.prune(model, 0.7)
    save_file(model.state_dict(), tmp_path / "zeros.safetensors")
    state, masks = ll.read_sparse(tmp_path / "zeros.safetensors")
    assert masks == expected
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_other_entries_of_a_state_dict_are_passed_over():
    state, masks = ll.read_sparse({"fc.weight": torch.eye(2), "fc._extra_state": {"count": 3}})
    assert (list(state), masks.kept) == (["fc.weight"], {"fc.weight": 2})


def test_experts_get_masks_of_their_own():
    experts = torch.ones(3, 4, 5)
    experts[1, 2] = 0
    _, masks = ll.read_sparse({"mlp.experts.down_proj": experts})
    assert masks.kept == {
        "mlp.experts.down_proj[0]": 20,
        "mlp.experts.down_proj[1]": 15,
        "mlp.experts.down_proj[2]": 20,
    }


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a.weight_orig": torch.ones(2, 2), "a.weight_mask": torch.ones(2)}, r"a\.weight: it has shape \(2, 2\)"),
        ({"a.weight_orig": torch.ones(2), "a.weight_mask": torch.full((2,), 0.5)}, "other values than 0 and 1"),
        (
            {"a.weight_orig": torch.ones(2), "a.weight_mask": torch.ones(2), "a.weight": torch.ones(2)},
            r"a\.weight: stored both as it is and with a mask",
        ),
        ({"a.bitmask": torch.ones(2)}, "a: there is a bitmask, but no compressed and no shape"),
        ({"bn.running_mean": torch.ones(3)}, "no masks in the state dict"),
    ],
)
def test_what_does_not_fit_is_named(state, message):
    with pytest.raises(ll.LamplighterError, match=message):
        ll.read_sparse(state)


def test_the_command_writes_the_checkpoint_and_its_masks(tmp_path):
    torch.save(pruned_model().state_dict(), tmp_path / "pruned.pt")
    words = ["migrate", str(tmp_path / "pruned.pt"), "-o", str(tmp_path / "dense.safetensors")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("torch.nn.utils.prune: 4 tensors\n")
    assert "4.in_proj_weight" in done.stdout
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 1
    assert "dense.safetensors exists" in again.stderr
    data = json.loads(CliRunner().invoke(app, [*words, "--force", "--json"]).stdout)
    masks = ll.Masks.load(data["masks"])
    assert (data["kept"], data["layers"]) == (masks.total_kept, len(LAYERS))
    assert listing(tmp_path) == ["dense.masks.safetensors", "dense.safetensors", "pruned.pt"]


@pytest.mark.parametrize(
    ("out", "message"),
    [("dense.pt", "no .safetensors file by its name"), ("pruned.safetensors", "is what is read")],
)
def test_nothing_is_written_where_it_must_not_be(tmp_path, out, message):
    save_file(pruned_model().state_dict(), tmp_path / "pruned.safetensors")
    with pytest.raises(ll.LamplighterError, match=message):
        ll.migrate(tmp_path / "pruned.safetensors", tmp_path / out, force=True)
    assert listing(tmp_path) == ["pruned.safetensors"]


def test_an_error_on_the_way_leaves_nothing(tmp_path):
    state = {"b.weight": torch.ones(4, 4), "a.weight_orig": torch.ones(2, 2), "a.weight_mask": torch.full((2, 2), 0.5)}
    save_file(state, tmp_path / "odd.safetensors")
    with pytest.raises(ll.LamplighterError, match="other values"):
        ll.migrate(tmp_path / "odd.safetensors", tmp_path / "dense.safetensors")
    assert listing(tmp_path) == ["odd.safetensors"]


def test_a_config_says_no_more_of_sparse_storage_but_all_of_quantisation():
    sparsity, quantised = {"format": "sparse-bitmask"}, {"config_groups": {"group_0": {}}, "format": "float-quantized"}
    for key in ("quantization_config", "compression_config"):
        assert plain_config({"a": 1, key: {"sparsity_config": sparsity, "version": "0.13.0"}}) == {"a": 1}
        assert plain_config({key: {"sparsity_config": sparsity, **quantised}}) == {key: quantised}
    assert plain_config({"quantization_config": {"quant_method": "gptq"}}) == {
        "quantization_config": {"quant_method": "gptq"}
    }
