"""Sparse files of compressed-tensors, written by the package itself and compared with what it reads back."""

import json

import pytest
import torch
from compressed_tensors import BitmaskConfig, Sparse24BitMaskConfig
from compressed_tensors.compressors import ModelCompressor
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import lamplighter as ll
from lamplighter.migration.reading import describe

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def same_bits(one, other):
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def llama(dtype, seed=0, **options):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": 40}
    config = LlamaConfig(num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=16, **sizes, **options)
    return LlamaForCausalLM(config).to(dtype)


def written(folder, model, config, shards="1GB"):
    """The model as the package writes it, in parts of at most so much."""
    compressor = ModelCompressor(sparsity_config=config)
    model.save_pretrained(folder, state_dict=compressor.compress(model), max_shard_size=shards)
    compressor.update_config(str(folder))
    return compressor


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shards", ["1GB", "10KB"])
def test_bitmask_folders_come_back_to_the_bit(tmp_path, dtype, shards):
    model = llama(dtype)
    expected = ll.prune(model, 0.7)
    compressor = written(tmp_path / "sparse", model, BitmaskConfig(targets=["Linear"]), shards)
    theirs = dict(compressor.sparsity_compressor.decompress(str(tmp_path / "sparse")))
    state, masks = ll.read_sparse(tmp_path / "sparse")
    assert state.keys() == theirs.keys() == model.state_dict().keys()
    assert all(same_bits(state[name], tensor) for name, tensor in theirs.items())
    assert all(same_bits(state[name], tensor) for name, tensor in model.state_dict().items())
    assert (masks == expected) is True
    assert describe(tmp_path / "sparse") == "compressed-tensors sparse-bitmask: 15 tensors"

    done = ll.migrate(tmp_path / "sparse", tmp_path / "dense")
    assert (done.masks == expected) is True
    assert (ll.Masks.load(tmp_path / "dense.masks.safetensors") == expected) is True
    assert done.kinds == {"compressed-tensors sparse-bitmask": 15, "plain": 6}
    assert describe(tmp_path / "dense") is None
    assert "quantization_config" not in json.loads((tmp_path / "dense" / "config.json").read_text())
    assert (tmp_path / "dense" / "generation_config.json").exists()
    assert (tmp_path / "dense" / "model.safetensors.index.json").exists() == (shards != "1GB")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "dense", dtype=dtype)
    assert all(same_bits(loaded.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


def test_24_bitmask_files_come_back_to_the_bit(tmp_path):
    model = llama(torch.bfloat16)
    expected = ll.prune(model, 0.5, pattern="2:4")
    config = Sparse24BitMaskConfig(targets=["Linear"], sparsity_structure="2:4")
    compressor = written(tmp_path / "sparse", model, config)
    theirs = dict(compressor.sparsity_compressor.decompress(str(tmp_path / "sparse")))
    state, masks = ll.read_sparse(tmp_path / "sparse")
    assert state.keys() == theirs.keys()
    assert all(same_bits(state[name], tensor) for name, tensor in theirs.items())
    assert (masks == expected) is True
    assert describe(tmp_path / "sparse") == "compressed-tensors sparse-24-bitmask: 15 tensors"


def test_every_tensor_may_be_stored_sparse(tmp_path):
    """As it is without targets: norms and embeddings too, of which the masks say nothing."""
    model = llama(torch.float32, tie_word_embeddings=False)
    expected = ll.prune(model, 0.6)
    save_file(BitmaskConfigured().compress(model.state_dict()), tmp_path / "all.safetensors")
    assert describe(tmp_path / "all.safetensors") == "compressed-tensors sparse-bitmask: 21 tensors"
    state, masks = ll.read_sparse(tmp_path / "all.safetensors")
    assert all(same_bits(state[name], tensor) for name, tensor in model.state_dict().items())
    assert (masks == expected) is True


def BitmaskConfigured():
    return ModelCompressor(sparsity_config=BitmaskConfig()).sparsity_compressor


def test_early_files_name_the_tensor_and_not_its_module(tmp_path):
    """Up to version 0.8 the parts were called fc.weight.bitmask, and biases were stored sparse as well."""
    from compressed_tensors.compressors import BitmaskTensor

    state = {"fc.weight": torch.randn(5, 11), "fc.bias": torch.randn(11), "conv.weight": torch.randn(2, 3, 3, 3)}
    for tensor in state.values():
        tensor[torch.rand(tensor.shape) < 0.5] = 0
    early = {}
    for name, tensor in state.items():
        early |= BitmaskTensor.from_dense(tensor).dict(name_prefix=name)
    assert "fc.weight.row_offsets" in early
    save_file(early, tmp_path / "early.safetensors")
    read, masks = ll.read_sparse(tmp_path / "early.safetensors")
    assert read.keys() == state.keys()
    assert all(same_bits(read[name], tensor) for name, tensor in state.items())
    assert all(torch.equal(masks[name], tensor != 0) for name, tensor in state.items())


def test_values_of_eight_bits_pass_as_well(tmp_path):
    weight = torch.randn(6, 10)
    weight[torch.rand(6, 10) < 0.5] = 0
    state = BitmaskConfigured().compress(
        {"fc.weight": weight.to(torch.float8_e4m3fn), "fc.weight_scale": torch.ones(6, 1)}
    )
    save_file(state, tmp_path / "eight.safetensors")
    read, masks = ll.read_sparse(tmp_path / "eight.safetensors")
    assert same_bits(read["fc.weight"], weight.to(torch.float8_e4m3fn))
    assert set(read) == {"fc.weight", "fc.weight_scale"}
    assert torch.equal(masks["fc.weight"], weight.to(torch.float8_e4m3fn).float() != 0)
    ll.migrate(tmp_path / "eight.safetensors", tmp_path / "dense.safetensors")
    assert same_bits(load_file(tmp_path / "dense.safetensors")["fc.weight"], read["fc.weight"])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state: state.pop("fc.compressed"), "fc: there is a bitmask, but no compressed"),
        (
            lambda state: state.update({"fc.compressed": state["fc.compressed"][1:]}),
            r"fc\.weight: there are \d+ values for",
        ),
        (lambda state: state.update({"fc.shape": torch.tensor([6, 999])}), r"does not fit its shape \(6, 999\)"),
        (lambda state: state.update({"fc.shape": torch.tensor([-6, 10])}), r"its shape is \[-6, 10\]"),
        (lambda state: state.update({"fc.bitmask": state["fc.bitmask"].float()}), "a bitmask of 12 bytes does not fit"),
    ],
)
def test_damaged_files_are_refused_and_nothing_is_written(tmp_path, spoil, message):
    state = BitmaskConfigured().compress({"fc.weight": torch.randn(6, 10)})
    spoil(state)
    save_file(state, tmp_path / "damaged.safetensors")
    for attempt in (ll.read_sparse, lambda path: ll.migrate(path, tmp_path / "dense.safetensors")):
        with pytest.raises(ll.LamplighterError, match=message):
            attempt(tmp_path / "damaged.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.safetensors"]


def test_what_is_written_for_one_kernel_only_is_refused(tmp_path):
    model = llama(torch.float32)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ll.LamplighterError, match="stored as marlin-24"):
        ll.read_sparse(tmp_path)
    assert "marlin-24" in describe(tmp_path)
