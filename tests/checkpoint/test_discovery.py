"""Which tensors of a checkpoint count: those that count of the model it was saved from."""

import json

import pytest
import torch
from safetensors.torch import save_file

import lamplighter as ll
from checkpoint.made import same_bits
from lamplighter.checkpoint.checkpoint import Checkpoint
from lamplighter.checkpoint.discovery import find_regions
from lamplighter.errors import LamplighterError
from lamplighter.targets import find_layers

transformers = pytest.importorskip("transformers")
# What the libraries say of their own.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*left without any weight"),
]


def llama(**options):
    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=64, num_key_value_heads=2, **small, **options)
    return transformers.LlamaForCausalLM(config).eval()


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=4)
    return transformers.GPT2LMHeadModel(config).eval()


def mixtral():
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.MixtralConfig(vocab_size=32, num_key_value_heads=1, num_local_experts=4, **small)
    return transformers.MixtralForCausalLM(config).eval()


def bert():
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=32, **small)).eval()


MODELS = {
    "llama": llama,
    "llama-tied": lambda: llama(tie_word_embeddings=True),
    "gpt2": gpt2,
    "mixtral": mixtral,
    "bert": bert,
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_weights_that_count_are_those_of_the_model(tmp_path, kind):
    model = MODELS[kind]()
    model.save_pretrained(tmp_path / "model")
    _, regions = find_regions(Checkpoint(tmp_path / "model"))
    expected = sum(layer.weight.numel() for layer in find_layers(model))
    assert sum(region.size for region in regions.values()) == expected


@pytest.mark.parametrize("kind", ["llama", "llama-tied", "gpt2"])
@pytest.mark.parametrize(("method", "pattern"), [("lamp", None), ("erk", None), ("uniform", "2:4"), ("uniform", "row")])
def test_a_pruned_folder_loads_and_gives_the_logits_of_pruning_in_memory(tmp_path, kind, method, pattern):
    model = MODELS[kind]()
    model.save_pretrained(tmp_path / "in", max_shard_size="20KB")
    (tmp_path / "in" / "tokenizer.json").write_text('{"any": "thing"}')
    ll.prune_checkpoint(tmp_path / "in", tmp_path / "out", sparsity=0.5, method=method, pattern=pattern)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"any": "thing"}'
    masks = ll.prune(model, 0.5, method, pattern=pattern)
    assert masks.sparsity == 0.5
    loaded = type(model).from_pretrained(tmp_path / "out").eval()
    for name, parameter in model.named_parameters():
        assert same_bits(loaded.get_parameter(name).detach(), parameter.detach()), name
    tokens = torch.arange(12).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, model(tokens).logits)


def layers_of(folder, tensors, config=None, **options):
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    layers, _ = find_regions(Checkpoint(folder), **options)
    return [layer.name for layer in layers]


def test_a_head_that_is_stored_beside_its_embedding_counts_unless_it_is_tied(tmp_path):
    table = torch.randn(16, 8)
    tensors = {
        "model.embed_tokens.weight": table,
        "lm_head.weight": table.clone(),
        "layers.0.fc.weight": torch.ones(8, 8),
    }
    untied = {**tensors, "lm_head.weight": torch.randn(16, 8)}
    fc = ["layers.0.fc.weight"]
    assert layers_of(tmp_path / "a", tensors) == fc  # the same bytes: tied
    assert layers_of(tmp_path / "b", untied) == [*fc, "lm_head.weight"]
    assert layers_of(tmp_path / "c", untied, {"tie_word_embeddings": True}) == fc
    assert layers_of(tmp_path / "d", tensors, {"tie_word_embeddings": False}) == [*fc, "lm_head.weight"]
    nested = {"text_config": {"model_type": "llama", "tie_word_embeddings": True}}
    assert layers_of(tmp_path / "e", untied, nested) == fc


def test_experts_of_a_stack_are_layers_and_can_be_chosen(tmp_path):
    tensors = {"mlp.experts.down_proj": torch.randn(3, 8, 4), "mlp.experts.gate_up_proj": torch.randn(3, 4, 16)}
    names = [f"mlp.experts.{part}[{expert}]" for part in ("down_proj", "gate_up_proj") for expert in range(3)]
    assert layers_of(tmp_path / "a", tensors) == names
    assert layers_of(tmp_path / "a", tensors, exclude="*down_proj[1]") == [n for n in names if "down_proj[1]" not in n]


def test_include_and_exclude_choose_by_name(tmp_path):
    tensors = {"embed.weight": torch.randn(4, 4), "a.weight": torch.randn(4, 4), "a.bias": torch.randn(4)}
    assert layers_of(tmp_path / "a", tensors) == ["a.weight"]
    assert layers_of(tmp_path / "a", tensors, include=["embed*", "a.bias"]) == ["a.bias", "embed.weight"]
    with pytest.raises(LamplighterError, match="matches no parameter"):
        layers_of(tmp_path / "a", tensors, exclude="b.*")
    with pytest.raises(LamplighterError, match="nothing to prune"):
        layers_of(tmp_path / "a", tensors, exclude="a.weight")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("fc.weight", torch.zeros(4, 4, dtype=torch.int8)),
        ("fc.weight", torch.zeros(4, 4).to(torch.float8_e4m3fn)),
        ("fc.qweight", torch.zeros(4, 4, dtype=torch.int32)),
        ("mlp.experts.gate_up_proj_blocks", torch.zeros(2, 4, 2, 4, dtype=torch.uint8)),
    ],
)
def test_quantised_weights_are_refused_by_name(tmp_path, name, tensor):
    with pytest.raises(LamplighterError, match="quantised or packed") as caught:
        layers_of(tmp_path / "a", {name: tensor, "plain.weight": torch.randn(4, 4)})
    assert name in caught.value.message
    assert "model.safetensors" in caught.value.message
    assert layers_of(tmp_path / "a", {name: tensor, "plain.weight": torch.randn(4, 4)}, exclude=name) == [
        "plain.weight"
    ]


def test_values_that_are_not_finite_are_refused_by_name(tmp_path):
    save_file({"a.weight": torch.full((4, 4), float("nan")), "b.weight": torch.ones(4, 4)}, tmp_path / "x.safetensors")
    with pytest.raises(LamplighterError, match=r"NaN or infinite values in a\.weight \(16\)"):
        ll.prune_checkpoint(tmp_path / "x.safetensors", tmp_path / "y.safetensors", sparsity=0.5)
    assert not (tmp_path / "y.safetensors").exists()
