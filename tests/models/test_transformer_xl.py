"""Transformer-XL: its weights, its relative positions, and its memory."""

import fnmatch

import pytest
import torch

from lamplighter.models.transformer_xl import PRUNABLE, Memory, relative_shift, sinusoids, transformer_xl


def small(**settings):
    torch.manual_seed(0)
    defaults = {"layers": 2, "width": 12, "heads": 3, "inner": 16, "memory": 8}
    model = transformer_xl(20, **defaults | settings).eval()
    # Far larger than they start, so that what attention looks at shows in the logits.
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.4)
    return model


def words(batch=2, length=8, seed=0):
    return torch.randint(20, (batch, length), generator=torch.Generator().manual_seed(seed))


def test_the_prunable_matrices_hold_7_569_600_weights():
    with torch.device("meta"):
        model = transformer_xl()
    chosen = {
        name: p.shape for name, p in model.named_parameters() if any(fnmatch.fnmatchcase(name, g) for g in PRUNABLE)
    }
    assert len(chosen) == 36
    assert sum(shape.numel() for shape in chosen.values()) == 7_569_600
    assert not any("position" in name or "embedding" in name or "head" in name for name in chosen)


def test_relative_shift_gives_each_pair_the_score_of_its_distance():
    queries, keys = 3, 5
    by_distance = torch.arange(float(queries * keys)).view(queries, keys)
    shifted = relative_shift(by_distance)
    for i in range(queries):
        for j in range(keys - queries + i + 1):
            distance = keys - queries + i - j
            assert shifted[i, j] == by_distance[i, keys - 1 - distance]


def test_attention_equals_its_definition_pair_by_pair():
    model = small()
    layer = model.layers[0].attention
    x, keys = torch.randn(1, 3, 12), 5
    seen = torch.cat((torch.randn(1, 2, 12), x), 1)
    distances = torch.arange(keys - 1, -1, -1)
    hidden = torch.arange(keys) > torch.arange(2, 5)[:, None]
    found = layer(x, seen, sinusoids(distances, 12), hidden)
    expected = torch.zeros(3, 12)
    for i in range(3):
        for h in range(3):
            part = slice(4 * h, 4 * h + 4)
            q = layer.query(x[0, i])[part]
            scores, values = [], []
            for j in range(i + 3):
                r = layer.position(sinusoids(torch.tensor([2 + i - j]), 12)[0])[part]
                k = layer.key(seen[0, j])[part]
                scores.append(((q + layer.content_bias[h, 0]) @ k + (q + layer.position_bias[h, 0]) @ r) / 2)
                values.append(layer.value(seen[0, j])[part])
            expected[i, part] = torch.stack(scores).softmax(0) @ torch.stack(values)
    torch.testing.assert_close(found[0], layer.output(expected))


def test_two_segments_with_memory_equal_one_long_segment():
    model, tokens = small(), words(length=8)
    whole, _ = model(tokens, model.fresh_memory(2))
    first, memory = model(tokens[:, :5], model.fresh_memory(2))
    second, memory = model(tokens[:, 5:], memory)
    torch.testing.assert_close(torch.cat((first, second), 1), whole)
    assert memory.filled.item() == 8


def test_an_empty_memory_has_no_influence():
    model = small()
    empty = model.fresh_memory(2)
    noise = Memory(torch.randn_like(empty.states), empty.filled)
    assert torch.equal(model(words(), empty)[0], model(words(), noise)[0])


def test_a_word_depends_on_earlier_words_alone():
    model, tokens = small(), words()
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 20
    before, after = (model(t, model.fresh_memory(2))[0] for t in (tokens, changed))
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_no_gradient_flows_into_the_memory():
    model = small().train()
    _, memory = model(words(), model.fresh_memory(2))
    assert not memory.states.requires_grad


def test_the_memory_keeps_the_last_positions():
    model, tokens = small(memory=4), words(length=6)
    _, memory = model(tokens, model.fresh_memory(2))
    embedded = model.embedding(tokens) * 12**0.5
    torch.testing.assert_close(memory.states[0], embedded[:, 2:])
    assert memory.filled.item() == 4


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_is_the_embedding_only_when_tied(tied):
    model = small(tied=tied)
    assert (model.head.weight is model.embedding.weight) == tied


def test_no_control_flow_depends_on_data():
    model, tokens = small(), words()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        logits, memory = compiled(tokens, model.fresh_memory(2))
        expected, _ = model(tokens, model.fresh_memory(2))
        torch.testing.assert_close(logits, expected)
        compiled(tokens, memory)
    torch.compiler.reset()
