"""Which weights count: the discovery rule on modules, mappings and names, include and exclude, and what is refused."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import lamplighter as ll
from lamplighter.errors import LamplighterError, LamplighterWarning
from lamplighter.naming import compile_glob, is_expert_stack, is_prunable_name, listed
from lamplighter.targets import Layer, find_layers, find_named, natural_key


def names(weights_or_model, **options):
    return [layer.name for layer in find_layers(weights_or_model, **options)]


class Experts(nn.Module):
    """A stack of experts as mixture models hold it, outputs first unless `inputs_first`."""

    def __init__(self, experts=3, hidden=4, inner=5, inputs_first=False):
        super().__init__()
        into, out_of = (experts, 2 * inner, hidden), (experts, hidden, inner)
        turn = (lambda shape: (shape[0], shape[2], shape[1])) if inputs_first else tuple
        self.gate_up_proj = nn.Parameter(torch.randn(turn(into)))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(experts, 2 * inner))
        self.down_proj = nn.Parameter(torch.randn(turn(out_of)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight


# ---------------------------------------------------------------------------------------------------------------- order


def test_names_sort_as_people_count():
    unsorted = ["layers.10.w", "layers.9.w", "a", "layers.9.b", "x[10]", "x[9]", "", "10", "9"]
    assert sorted(unsorted, key=natural_key) == [
        "", "9", "10", "a", "layers.9.b", "layers.9.w", "layers.10.w", "x[9]", "x[10]",
    ]  # fmt: skip


def test_names_that_differ_in_leading_zeros_have_one_order():
    assert sorted(["w1", "w01"], key=natural_key) == sorted(["w01", "w1"], key=natural_key)


def test_layers_come_in_natural_order():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(12)))
    assert names(model) == [f"{place}.weight" for place in range(12)]
    assert names({"b.10": torch.ones(2), "b.9": torch.ones(2), "a": torch.ones(2)}) == ["a", "b.9", "b.10"]


# --------------------------------------------------------------------------------------------------------- module types


@pytest.mark.parametrize(
    ("module", "axis"),
    [
        (nn.Linear(3, 2), 0),
        (nn.modules.linear.NonDynamicallyQuantizableLinear(3, 2), 0),
        (nn.Conv1d(2, 3, 1), 0),
        (nn.Conv2d(2, 3, 2, groups=1), 0),
        (nn.Conv3d(2, 3, 1), 0),
        (nn.ConvTranspose1d(2, 3, 1), 1),
        (nn.ConvTranspose2d(2, 3, 1), 1),
        (nn.ConvTranspose3d(2, 3, 1), 1),
    ],
)
def test_linear_and_convolution_weights_are_found_with_their_output_axis(module, axis):
    (layer,) = find_layers(nn.ModuleDict({"layer": module}))
    assert (layer.name, layer.output_axis, layer.expert) == ("layer.weight", axis, None)
    assert layer.parameter is module.weight
    assert not layer.weight.requires_grad
    assert layer.weight.data_ptr() == module.weight.data_ptr()


@pytest.mark.parametrize(
    "module",
    [
        nn.Bilinear(2, 3, 4),
        nn.Embedding(5, 3),
        nn.EmbeddingBag(5, 3),
        nn.LayerNorm((3, 4)),
        nn.RMSNorm((3, 4)),
        nn.BatchNorm2d(3),
        nn.GroupNorm(1, 3),
        nn.PReLU(3),
        nn.LSTM(3, 4),
        nn.GRUCell(3, 4),
    ],
    ids=lambda module: type(module).__name__,
)
def test_other_torch_layers_are_never_chosen_by_default(module):
    assert names(nn.ModuleList([module, nn.Linear(2, 2)])) == ["1.weight"]


def test_recurrent_and_bilinear_weights_can_be_included():
    model = nn.ModuleDict({"rnn": nn.LSTM(3, 4), "pair": nn.Bilinear(2, 3, 4)})
    assert names(model, include=["*weight*"]) == ["pair.weight", "rnn.weight_hh_l0", "rnn.weight_ih_l0"]


def test_attention_projections_are_found_packed_and_separate():
    assert names(nn.MultiheadAttention(4, 2, add_bias_kv=True)) == ["in_proj_weight", "out_proj.weight"]
    assert names(nn.MultiheadAttention(4, 2, kdim=3, vdim=5)) == [
        "k_proj_weight", "out_proj.weight", "q_proj_weight", "v_proj_weight",
    ]  # fmt: skip


def test_a_module_of_the_users_own_is_judged_by_name_and_shape():
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3))
            self.scale = nn.Parameter(torch.randn(4, 3))

    class TokenEmbedding(Router):
        pass

    class MyNorm(Router):
        pass

    model = nn.ModuleDict({"gate": Router(), "lookup": TokenEmbedding(), "out": MyNorm(), "norm": Router()})
    assert names(model) == ["gate.weight"]


def test_frozen_weights_count():
    model = nn.Linear(3, 2).requires_grad_(False)
    assert names(model) == ["weight"]


def test_a_subclass_of_a_layer_counts_as_the_layer():
    class MyLinear(nn.Linear):
        pass

    class MyEmbedding(nn.Embedding):
        pass

    class Scale(nn.LayerNorm):
        pass

    assert names(nn.Sequential(MyLinear(2, 2), MyEmbedding(3, 2), Scale((2, 2)))) == ["0.weight"]


# --------------------------------------------------------------------------------------------------------------- shared


def test_a_head_tied_to_an_embedding_does_not_count():
    assert names(Tied()) == ["body.weight"]


def test_a_head_tied_to_an_embedding_table_of_the_users_own_does_not_count():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok_emb = nn.Parameter(torch.randn(7, 4))
            self.body = nn.Linear(4, 4)
            self.head = nn.Linear(4, 7)
            self.head.weight = self.tok_emb

    assert names(Bare()) == ["body.weight"]


def test_a_shared_weight_counts_once_under_its_first_name_in_parameter_order():
    model = nn.ModuleDict({"z": nn.Linear(3, 3), "a": nn.Linear(3, 3)})
    model["a"].weight = model["z"].weight
    assert names(model) == ["z.weight"] == [name for name, _ in model.named_parameters() if "weight" in name]


def test_a_shared_module_counts_once():
    block = nn.Linear(3, 3)
    assert names(nn.Sequential(block, nn.ReLU(), block)) == ["0.weight"]


def test_parameters_that_are_one_memory_count_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.data)
    assert names(model) == ["0.weight"]
    assert names({"a": model[0].weight, "b": model[1].weight}) == ["a"]


def test_globs_match_any_name_of_a_shared_weight():
    assert names(Tied(), include="head.*") == ["embed.weight"]
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "c": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    assert names(model, exclude="b.*") == ["c.weight"]


def test_named_layers_are_found_under_any_of_their_names():
    model = Tied()
    found = find_named(model, ["head.weight", "body.bias", "nowhere"])
    assert list(found) == ["head.weight", "body.bias"]
    assert found["head.weight"].parameter is model.embed.weight
    stacks = nn.ModuleDict({"mlp": Experts()})
    (layer,) = find_named(stacks, ["mlp.down_proj[2]"]).values()
    assert (layer.name, layer.expert) == ("mlp.down_proj[2]", 2)
    assert not find_named(nn.Sequential(torch_pruned()), ["0.weight", "0.weight_orig"])


# --------------------------------------------------------------------------------------------------------------- stacks


def test_every_expert_of_a_stack_is_a_layer_of_its_own():
    model = nn.ModuleDict({"mlp": Experts(experts=11)})
    layers = find_layers(model)
    assert [layer.name for layer in layers] == [
        *(f"mlp.down_proj[{expert}]" for expert in range(11)),
        *(f"mlp.gate_up_proj[{expert}]" for expert in range(11)),
    ]
    layer = layers[3]
    assert (layer.expert, layer.parameter_name) == (3, "mlp.down_proj")
    assert torch.equal(layer.weight, model["mlp"].down_proj[3])
    layer.weight.zero_()
    assert not model["mlp"].down_proj[3].any()
    assert model["mlp"].down_proj[4].any()


@pytest.mark.parametrize("inputs_first", [False, True])
def test_the_output_axis_of_experts_is_told_by_how_their_matrices_fit(inputs_first):
    experts = Experts(inputs_first=inputs_first)
    assert {layer.output_axis for layer in find_layers(experts)} == {int(inputs_first)}
    stacks = {"mlp.gate_up_proj": experts.gate_up_proj, "mlp.down_proj": experts.down_proj}
    assert {layer.output_axis for layer in find_layers(stacks)} == {int(inputs_first)}


def test_experts_whose_matrices_do_not_tell_have_their_outputs_first():
    square = {"mlp.gate_up_proj": torch.ones(2, 4, 4), "mlp.down_proj": torch.ones(2, 4, 4)}
    assert {layer.output_axis for layer in find_layers(square)} == {0}
    assert {layer.output_axis for layer in find_layers({"mlp.down_proj": torch.ones(2, 4, 4)})} == {0}


def test_a_mapping_splits_stacks_as_the_module_does():
    model = nn.ModuleDict({"mlp": Experts(), "head": nn.Linear(4, 4)})
    layers = find_layers(model)
    mapping = {name: tensor for name, tensor in model.named_parameters() if not name.endswith("bias")}
    assert names(mapping) == [layer.name for layer in layers]


def test_an_expert_class_makes_a_stack_whatever_its_names():
    class MyExperts(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1 = nn.Parameter(torch.randn(3, 4, 5))
            self.pos_embed = nn.Parameter(torch.randn(3, 4, 5))
            self.w1_bias = nn.Parameter(torch.randn(3, 1, 5))

    assert names(nn.ModuleDict({"ffn": MyExperts()})) == [f"ffn.w1[{expert}]" for expert in range(3)]


@pytest.mark.parametrize(
    ("name", "shape", "stacked"),
    [
        ("model.layers.0.mlp.experts.gate_up_proj", (8, 6, 4), True),
        ("model.layers.0.feed_forward.experts.w1", (8, 6, 4), True),
        ("model.layers.0.block_sparse_moe.input_linear.weight", (8, 6, 4), True),
        ("model.layers.0.mlp.output_linear.weight", (8, 6, 4), True),
        ("experts", (8, 6, 4), True),
        ("layers.0.down_proj", (1, 6, 4), True),
        ("model.layers.0.mlp.experts.gate_up_proj", (8, 6), False),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", (8, 1, 6), False),
        ("moe.experts.0.conv1.weight", (8, 6, 3), False),
        ("moe.experts.0.mixer.weight", (8, 6, 3), False),
        ("moe.conv.weight", (8, 6, 3), False),
        ("moe.shift", (1, 6, 3), False),
        ("encoder.pos_embedding", (1, 50, 16), False),
        ("moe.pos_embedding", (2, 50, 16), False),
        ("vit.embeddings.cls_token", (1, 1, 16), False),
        ("moe.query_tokens", (1, 8, 16), False),
        ("features.0.weight", (8, 6, 3), False),
    ],
)
def test_expert_stacks_are_known_by_name_and_shape(name, shape, stacked):
    assert is_expert_stack(name, shape) is stacked


def test_positional_embeddings_and_class_tokens_are_no_stacks():
    class Vision(nn.Module):
        def __init__(self):
            super().__init__()
            self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
            self.pos_embedding = nn.Parameter(torch.zeros(1, 9, 4))
            self.patch_embedding = nn.Conv2d(3, 4, 2)

    assert names(Vision()) == ["patch_embedding.weight"]


# ----------------------------------------------------------------------------------------------------------- name rule


@pytest.mark.parametrize(
    ("name", "shape", "prunable"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (16, 16), True),
        ("model.embed_tokens.weight", (64, 16), False),
        ("tok_embeddings.weight", (64, 16), False),
        ("transformer.wte.weight", (64, 16), False),
        ("transformer.wpe.weight", (64, 16), False),
        ("bert.embeddings.word_embeddings.weight", (64, 16), False),
        ("bert.embeddings.position_embeddings.weight", (64, 16), False),
        ("shared.weight", (64, 16), False),
        ("block.0.layer.0.SelfAttention.relative_attention_bias.weight", (32, 2), False),
        ("model.layers.0.mlp.gate.weight", (4, 16), True),
        ("model.layers.0.mlp.shared_expert.up_proj.weight", (24, 16), True),
        ("model.layers.0.input_layernorm.weight", (16,), False),
        ("vit.embeddings.patch_embeddings.projection.weight", (16, 3, 4, 4), True),
        ("embeddings.patch_embedding.weight", (16, 48), True),
        ("time_embed.0.weight", (16, 16), True),
        ("word_emb.emb_layers.0.weight", (64, 16), False),
        ("embed_out.weight", (64, 16), True),
        ("lm_head.weight", (64, 16), True),
        ("grn.weight", (1, 1, 1, 16), False),
        ("norm.weight", (3, 8, 8), False),
        ("layer1.0.bn1.weight", (64,), False),
        ("layer1.0.conv1.weight", (64, 3, 3, 3), True),
        ("fc.bias", (10,), False),
        ("rnn.weight_hh_l0", (16, 4), False),
        ("attn.in_proj_weight", (48, 16), True),
        ("weight", (2, 3), True),
        ("fc1.weight", (), False),
    ],
)
def test_the_name_rule(name, shape, prunable):
    assert is_prunable_name(name, shape, torch.float32) is prunable


def test_the_name_rule_chooses_quantised_weights_so_that_they_can_be_refused():
    assert is_prunable_name("q_proj.weight", (4, 4), torch.float8_e4m3fn)
    assert is_prunable_name("q_proj.weight", (8, 1), torch.uint8)
    assert is_prunable_name("q_proj.qweight", (4, 4), torch.int32)
    assert is_prunable_name("mlp.experts.down_proj_blocks", (2, 4, 2, 16), torch.uint8)
    assert not is_prunable_name("q_proj.weight", (4, 4), torch.bool)
    assert not is_prunable_name("mlp.experts.down_proj_scales", (2, 4, 2), torch.uint8)


def by_names(model):
    """The default choice, made from names, shapes and dtypes as of a checkpoint, which holds a tied weight once."""
    shapes = {
        name: tensor for name, tensor in model.named_parameters() if is_prunable_name(name, tensor.shape, tensor.dtype)
    }
    return [layer.name for layer in find_layers(shapes)]


def transformers_models():
    transformers = pytest.importorskip("transformers")
    small = {
        "vocab_size": 32,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    grouped = {**small, "num_key_value_heads": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    yield transformers.LlamaForCausalLM(transformers.LlamaConfig(**grouped)), 15
    yield transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=32, n_embd=8, n_layer=2, n_head=2, **ends)), 8
    yield transformers.BertForMaskedLM(transformers.BertConfig(**small)), 13
    yield transformers.MixtralForCausalLM(transformers.MixtralConfig(**grouped, num_local_experts=3)), 23


@pytest.fixture(scope="module")
def language_models():
    return list(transformers_models())


def test_modules_and_names_agree_on_language_models(language_models):
    for model, count in language_models:
        found = names(model)
        assert found == by_names(model), type(model).__name__
        assert len(found) == count, (type(model).__name__, found)
        assert not [name for name in found if "embed" in name or "norm" in name.lower() or "bias" in name]


def test_hugging_face_conv1d_has_its_outputs_on_the_second_axis(language_models):
    gpt2 = next(model for model, _ in language_models if type(model).__name__.startswith("GPT2"))
    layers = find_layers(gpt2)
    assert {layer.output_axis for layer in layers} == {1}
    assert {layer.name.split(".", 3)[3] for layer in layers} == {
        "attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight",
    }  # fmt: skip


def test_mixtral_has_its_router_and_every_expert(language_models):
    mixtral = next(model for model, _ in language_models if type(model).__name__.startswith("Mixtral"))
    layers = {layer.name: layer for layer in find_layers(mixtral)}
    assert "model.layers.1.mlp.gate.weight" in layers
    assert layers["model.layers.1.mlp.experts.down_proj[2]"].weight.shape == (8, 12)
    assert layers["model.layers.1.mlp.experts.gate_up_proj[0]"].output_axis == 0


@pytest.mark.parametrize(("build", "count"), [("resnet18", 21), ("vgg11_bn", 11)])
def test_modules_and_names_agree_on_vision_models(build, count):
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        model = getattr(models, build)()
    model = model.to_empty(device="cpu")
    assert len(names(model)) == count
    assert names(model) == by_names(model)


# ------------------------------------------------------------------------------------------------- include and exclude


def test_include_replaces_the_default_and_exclude_removes():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    assert names(model, include="*.bias") == ["0.bias", "1.bias", "2.bias"]
    assert names(model, include=["0.*", "1.weight"]) == ["0.bias", "0.weight", "1.weight"]
    assert names(model, exclude="0.*") == ["2.weight"]
    assert names(model, include=("*",), exclude=["*.bias", "1.*"]) == ["0.weight", "2.weight"]


def test_include_and_exclude_apply_to_mappings():
    weights = {"a.weight": torch.ones(2), "a.bias": torch.ones(2), "b.weight": torch.ones(2)}
    assert names(weights, include="a.*") == ["a.bias", "a.weight"]
    assert names(weights, exclude="*.bias") == ["a.weight", "b.weight"]


def test_globs_are_case_sensitive():
    with pytest.raises(LamplighterError, match="matches no parameter"):
        names(nn.ModuleDict({"Layer": nn.Linear(2, 2)}), include="layer.weight")


def test_globs_choose_stacks_whole_or_by_expert():
    model = nn.ModuleDict({"mlp": Experts()})
    assert names(model, include="mlp.down_proj") == [f"mlp.down_proj[{expert}]" for expert in range(3)]
    assert names(model, include="mlp.down_proj[1]") == ["mlp.down_proj[1]"]
    assert names(model, include="*[2]") == ["mlp.down_proj[2]", "mlp.gate_up_proj[2]"]
    assert names(model, exclude=["mlp.gate_up_proj", "*[0]"]) == ["mlp.down_proj[1]", "mlp.down_proj[2]"]


def test_brackets_that_hold_no_expert_keep_their_meaning():
    assert compile_glob("layer[ab].w").match("layera.w")
    assert compile_glob("x[12]").match("x[12]")
    assert not compile_glob("x[12]").match("x1")


def test_excluding_what_is_left_out_anyway_is_no_mistake():
    assert names(Tied(), exclude="head.weight") == ["body.weight"]


@pytest.mark.parametrize("option", ["include", "exclude"])
def test_a_pattern_that_matches_nothing_is_an_error_that_offers_names(option):
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    with pytest.raises(LamplighterError, match=rf"{option} pattern 'enoder.weight' matches no parameter") as caught:
        names(model, **{option: ["head.*", "enoder.weight"]})
    assert "did you mean encoder.weight" in str(caught.value)


@pytest.mark.parametrize("wrong", [3, ["a", 3], b"a"])
def test_globs_must_be_strings(wrong):
    with pytest.raises(LamplighterError, match="include holds"):
        names(nn.Linear(2, 2), include=wrong)


# ------------------------------------------------------------------------------------------------------------- wrappers


def test_wrappers_are_looked_through_also_when_nested():
    inner = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    expected = [(layer.name, layer.parameter) for layer in find_layers(inner)]
    compiled = torch.compile(inner, backend="eager")
    for wrapped in (compiled, nn.DataParallel(inner), nn.DataParallel(compiled)):
        found = [(layer.name, layer.parameter) for layer in find_layers(wrapped)]
        assert [name for name, _ in found] == ["0.weight", "2.weight"]
        assert all(ours is theirs for (_, ours), (_, theirs) in zip(found, expected, strict=True))


def test_a_compiled_part_of_a_model_keeps_its_names():
    model = nn.ModuleDict({"module": nn.Linear(2, 2), "body": nn.Sequential(nn.Linear(3, 3))})
    model["body"] = torch.compile(model["body"], backend="eager")
    assert names(model) == ["body.0.weight", "module.weight"]


def test_distributed_wrappers_are_looked_through(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(2, 2)))
        assert names(wrapped) == ["0.weight"]
    finally:
        torch.distributed.destroy_process_group()


# --------------------------------------------------------------------------------------------------- computed weights


def parametrized():
    return parametrizations.weight_norm(nn.Linear(3, 3))


def old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(nn.Linear(3, 3))


def torch_pruned():
    return prune.l1_unstructured(nn.Linear(3, 3), "weight", 2)


def spectral():
    return nn.utils.spectral_norm(nn.Linear(3, 3))


@pytest.mark.parametrize("build", [parametrized, old_weight_norm, torch_pruned, spectral])
@pytest.mark.parametrize("include", [None, "*", "*.weight", "[ab].weight*"])
def test_computed_weights_are_left_out_with_one_warning_that_names_them(build, include):
    model = nn.ModuleDict({"b": build(), "a": build(), "weights": nn.Linear(3, 3)})
    model["weights"].bias = None
    if include == "[ab].weight*":
        include = ["weights.weight", "a.weight*", "b.weight"]
    if include == "*":
        del model["a"].bias, model["b"].bias
    with pytest.warns(LamplighterWarning) as caught:
        assert names(model, include=include) == ["weights.weight"]
    assert len(caught) == 1
    assert "a.weight, b.weight" in str(caught[0].message)


def test_the_warning_of_left_out_weights_points_at_the_users_line():
    model = nn.Sequential(parametrized(), nn.Linear(3, 3))
    batches = [torch.ones(1, 3)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        ll.allocate(model, 0.5)
        ll.prune(model, 0.5)
        ll.input_norms(model, batches)
        find_layers(model)
    assert [each.filename for each in caught] == [__file__] * 4
    first = caught[0].lineno
    assert [each.lineno for each in caught] == [first, first + 1, first + 2, first + 3]


def test_the_warning_of_left_out_weights_names_three_at_most():
    model = nn.Sequential(*(parametrized() for _ in range(30)), nn.Linear(3, 3))
    with pytest.warns(LamplighterWarning) as caught:
        names(model)
    assert "parameters: 0.weight, 1.weight, 2.weight and 27 more (" in str(caught[0].message)
    with pytest.raises(LamplighterError, match=r"others \(0\.weight, 1\.weight, 2\.weight and 27 more\)"):
        names(model[:30])


def test_three_names_are_listed_in_full_and_a_fourth_is_counted():
    assert [listed(list("abcd")[:count]) for count in range(5)] == ["", "a", "a, b", "a, b, c", "a, b, c and 1 more"]


def test_parametrized_biases_are_nobodys_concern():
    model = nn.Sequential(nn.Linear(3, 3))
    parametrize.register_parametrization(model[0], "bias", nn.Identity())
    assert names(model) == ["0.weight"]


def test_excluded_computed_weights_do_not_warn():
    assert names(nn.Sequential(parametrized(), nn.Linear(2, 2)), exclude="0.*") == ["1.weight"]


def test_a_model_of_computed_weights_alone_has_nothing_to_prune():
    with pytest.raises(LamplighterError, match=r"computed from others \(0\.weight\)"):
        names(nn.Sequential(parametrized()))


# -------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.ones(3), r"got a Tensor of shape \(3,\)"),
        (nn.Linear, "got the class Linear"),
        (nn.Linear(2, 2).parameters(), "got a generator"),
        (None, "got a NoneType"),
        ("model", "got a str"),
        ([torch.ones(3)], "got a list"),
    ],
    ids=["tensor", "class", "generator", "none", "string", "list"],
)
def test_anything_but_a_module_or_mapping_is_refused(given, said):
    with pytest.raises(LamplighterError, match=f"expected a Module or a mapping of names to tensors, {said}"):
        find_layers(given)


@pytest.mark.parametrize("given", [{"w": 3.0}, {"w": [1.0]}, {3: torch.ones(2)}, {"w": None}])
def test_mapping_entries_must_be_named_tensors(given):
    with pytest.raises(LamplighterError, match="expected a name and a Tensor"):
        find_layers(given)


@pytest.mark.parametrize("given", [{}, nn.ReLU(), nn.Sequential(nn.BatchNorm1d(3), nn.Embedding(3, 3))])
def test_nothing_prunable_is_an_error(given):
    with pytest.raises(LamplighterError, match=f"nothing to prune in {type(given).__name__}"):
        find_layers(given)


def test_excluding_everything_is_an_error():
    with pytest.raises(LamplighterError, match="include and exclude leave none"):
        find_layers(nn.Linear(2, 2), exclude="*")
    with pytest.raises(LamplighterError, match="include and exclude leave none"):
        find_layers(nn.Linear(2, 2), include=[])


@pytest.mark.parametrize(
    "dtype",
    [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.int32, torch.complex64, torch.bool],
    ids=str,
)
def test_unsupported_dtypes_are_refused_by_name(dtype):
    model = nn.ModuleDict({"first": nn.Linear(2, 2), "second": nn.Linear(2, 2)})
    model["second"].weight = nn.Parameter(torch.zeros(2, 2).to(dtype), requires_grad=False)
    with pytest.raises(LamplighterError, match=rf"layer 'second.weight' is stored as {dtype}.*"):
        find_layers(model)
    with pytest.raises(LamplighterError, match=rf"'w' is stored as {dtype}"):
        find_layers({"w": model["second"].weight})
    assert names(model, exclude="second.*") == ["first.weight"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_supported_dtypes_pass(dtype):
    assert names(nn.Linear(2, 2, dtype=dtype)) == ["weight"]


def test_quantised_weights_held_as_buffers_are_refused():
    class Quantised(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("qweight", torch.zeros(2, 2, dtype=torch.int32))

    with pytest.raises(LamplighterError, match=r"'0\.qweight' is stored as torch\.int32"):
        find_layers(nn.Sequential(Quantised(), nn.Linear(2, 2)))


class Holding(nn.Module):
    """A layer whose weight is a buffer, with its scales, as 8-bit inference has it."""

    def __init__(self, name, dtype, shape=(2, 2)):
        super().__init__()
        self.register_buffer(name, torch.zeros(shape).to(dtype))
        self.register_buffer("scales", torch.ones(2))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("weight", each) for each in (torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2)]
    + [("W_q", torch.uint8), ("W_q", torch.int32), ("weight_q", torch.int8), ("int_weight", torch.int16)],
    ids=str,
)
def test_a_weight_held_in_a_small_format_is_refused_beside_float_layers(name, dtype):
    model = nn.ModuleDict({"packed": Holding(name, dtype), "plain": nn.Linear(2, 2)})
    with pytest.raises(LamplighterError, match=rf"'packed\.{name}' is stored as {dtype}") as caught:
        find_layers(model)
    assert f"exclude='packed.{name}'" in caught.value.hint
    assert names(model, exclude="packed.*") == ["plain.weight"]
    assert names(model, include="plain.weight") == ["plain.weight"]


def test_a_packed_weight_is_refused_whether_it_is_a_parameter_or_a_buffer():
    model = nn.ModuleDict({"packed": nn.Module(), "linear": nn.Linear(2, 2)})
    model["packed"].W_q = nn.Parameter(torch.zeros(2, 2, dtype=torch.uint8), requires_grad=False)
    model["linear"].register_buffer("weight_int8", torch.zeros(2, 2, dtype=torch.int8))
    with pytest.raises(LamplighterError, match=r"'packed\.W_q' is stored as torch\.uint8"):
        find_layers(model, exclude="linear.weight_int8")
    with pytest.raises(LamplighterError, match=r"'linear\.weight_int8' is stored as torch\.int8"):
        find_layers(model, exclude="packed.*")


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("weight", torch.float32, (2, 2)),
        ("weight", torch.int64, (2, 2)),
        ("weight", torch.bool, (2, 2)),
        ("weight", torch.int32, (4,)),
        ("weight_mask", torch.uint8, (2, 2)),
        ("weight_zero_point", torch.int8, (2, 1)),
        ("weight_scale", torch.float8_e4m3fn, (2, 1)),
        ("spectral_weight", torch.complex64, (2, 2)),
        ("index", torch.int32, (2, 2)),
    ],
    ids=str,
)
def test_buffers_that_are_no_packed_weights_are_nobodys_concern(name, dtype, shape):
    assert names(nn.Sequential(Holding(name, dtype, shape), nn.Linear(2, 2))) == ["1.weight"]
    linear = nn.Linear(2, 2)
    linear.register_buffer("old_" + name, torch.zeros(shape).to(dtype))
    assert names(linear) == ["weight"]


def test_packed_embeddings_are_left_alone_as_others_are():
    class Int8Embedding(Holding):
        pass

    table = nn.Embedding(3, 2)
    table.register_buffer("weight_q", torch.zeros(3, 2, dtype=torch.int8))
    model = nn.ModuleDict({"a": Int8Embedding("weight", torch.int8), "b": table, "c": nn.Linear(2, 2)})
    model["embed_tokens"] = Holding("W_q", torch.uint8)
    assert names(model) == ["c.weight"]
    assert not is_prunable_name("embed_tokens.weight", (8, 2), torch.int8)
    assert not is_prunable_name("embed_tokens.W_q", (8, 2), torch.uint8)


def quantised(model, *kinds):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, set(kinds), torch.qint8)


needs_packing = pytest.mark.skipif(
    not {"fbgemm", "x86", "qnnpack", "onednn"} & set(torch.backends.quantized.supported_engines),
    reason="this build of torch does not quantise",
)


@needs_packing
def test_dynamically_quantised_layers_are_refused_by_name():
    model = quantised(nn.Sequential(nn.Conv1d(2, 3, 1), nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear)
    with pytest.raises(
        LamplighterError, match=r"'1\.weight' is packed inside a torch\.ao\.nn\.quantized.*Linear"
    ) as caught:
        find_layers(model, exclude="2.weight")
    assert "exclude='1.weight'" in caught.value.hint
    assert names(model, exclude=["1.*", "2.*"]) == ["0.weight"]
    assert names(model, include="0.weight") == ["0.weight"]
    assert list(find_named(model, ["0.weight", "1.weight"])) == ["0.weight"]


@needs_packing
def test_a_model_that_is_quantised_altogether_is_refused_not_called_empty():
    for model, name in (
        (quantised(nn.Sequential(nn.Linear(4, 4)), nn.Linear), r"0\.weight"),
        (quantised(nn.Sequential(nn.Linear(4, 4)), nn.Linear)[0], "weight"),
    ):
        with pytest.raises(LamplighterError, match=f"layer '{name}' is packed inside"):
            find_layers(model)


@needs_packing
def test_quantised_recurrent_layers_and_embeddings_are_left_alone_as_float_ones_are():
    assert names(quantised(nn.Sequential(nn.LSTM(3, 4), nn.Linear(4, 4)), nn.LSTM)) == ["1.weight"]
    table = torch.ao.nn.quantized.Embedding(3, 4, dtype=torch.quint8)
    assert names(nn.Sequential(table, nn.Linear(4, 4))) == ["1.weight"]


@pytest.mark.parametrize("packing", [object, nn.Module])
def test_a_layer_of_another_library_that_packs_as_torch_does_is_refused(packing):
    layer = nn.Module()
    layer._packed_params = packing()
    with pytest.raises(LamplighterError, match=r"'0\.weight' is packed inside a torch\.nn\.modules\.module\.Module"):
        find_layers(nn.Sequential(layer, nn.Linear(2, 2)))


def test_packed_convolutions_are_known_by_their_class():
    class Conv2d(nn.Module):
        def weight(self):
            raise NotImplementedError

    Conv2d.__module__ = "torch.ao.nn.intrinsic.quantized.modules.conv_relu"
    with pytest.raises(LamplighterError, match=r"'0\.weight' is packed inside a torch\.ao\.nn\.intrinsic"):
        find_layers(nn.Sequential(Conv2d(), nn.Linear(2, 2)))


def test_torch_quantised_and_sparse_tensors_are_refused():
    with pytest.raises(LamplighterError, match="'w' is stored with layout"):
        find_layers({"w": torch.eye(3).to_sparse()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(LamplighterError, match=r"'w' is stored as torch\.qint8"):
        find_layers({"w": quantised})


def test_single_numbers_are_refused():
    with pytest.raises(LamplighterError, match="single number"):
        find_layers({"w": torch.tensor(1.0)})


def test_meta_and_lazy_weights_are_refused_by_name():
    with pytest.raises(LamplighterError, match=r"layer '0\.weight' is on the meta device"):
        find_layers(nn.Sequential(nn.Linear(2, 2, device="meta")))
    with pytest.raises(LamplighterError, match=r"layer '0\.weight' has no shape yet"):
        find_layers(nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d()))


def test_empty_and_one_element_weights_count():
    assert names({"empty": torch.ones(0, 3), "one": torch.ones(1)}) == ["empty", "one"]


def test_the_parameter_name_of_a_layer_has_no_expert():
    assert Layer("a[1].w[2]", torch.ones(3, 1), 2).parameter_name == "a[1].w"
    assert Layer("a[1]", torch.ones(3)).parameter_name == "a[1]"
