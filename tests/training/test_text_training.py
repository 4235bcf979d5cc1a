"""Text is read in order, in columns, with a memory from segment to segment."""

import pytest
import torch

from lamplighter.data.dataset import Corpus
from lamplighter.errors import LamplighterError
from lamplighter.models.transformer_xl import PRUNABLE
from lamplighter.pruning import prune
from lamplighter.training.evaluate import evaluate
from lamplighter.training.fit import fit
from lamplighter.training.settings import Settings
from lamplighter.training.tasks import in_columns, text_loss, text_tables


def test_columns_are_equal_parts_of_the_text():
    assert in_columns(torch.arange(11), 3).tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_segments_follow_each_other_and_the_memory_starts_empty_each_time(text, language_model):
    model = language_model().eval()
    tables = text_tables(model, text, Settings(steps=1, batch=4, length=30))
    assert tables.segments == 3
    step = torch.zeros(1, dtype=torch.int64)
    losses, filled = [], []
    for _ in range(6):
        losses.append(text_loss(model, (tables, step)).item())
        filled.append(tables.filled.item())
        step += 1
    assert losses[:3] == losses[3:]
    assert filled == [8] * 6
    columns = text.train.view(4, 100).long()
    logits, _ = model(columns[:, :30], model.fresh_memory(4))
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), columns[:, 1:31].flatten())
    assert losses[0] == pytest.approx(expected.item(), rel=1e-6)


def test_a_language_model_learns_a_repeated_text(language_model):
    words = torch.arange(10, dtype=torch.int32).repeat(40)
    data = Corpus("count", words, words[:50], words[:50], tuple(map(str, range(20))))
    model = language_model()
    fit(model, data, Settings(steps=80, batch=4, length=20, lr=0.02))
    assert evaluate(model, data).accuracy > 0.9


def test_dropout_follows_from_the_seed(text, language_model):
    settings = Settings(steps=4, batch=4, length=20)
    runs = [fit(language_model(rate=0.3), text, settings, seed=seed).losses for seed in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_the_prunable_matrices_stay_pruned(text, language_model):
    model = language_model()
    masks = prune(model, sparsity=0.5, include=PRUNABLE)
    assert len(masks) == 12
    fit(model, text, Settings(steps=3, batch=4, length=20), masks)
    assert all(not model.get_parameter(name)[~masks[name]].any() for name in masks)


def test_too_short_a_text_is_an_error(text, language_model):
    with pytest.raises(LamplighterError, match="400 words of example do not fill 20 columns of more than 70"):
        fit(language_model(), text, Settings(steps=1, batch=20))


def test_a_network_for_images_is_refused(text, network):
    with pytest.raises(LamplighterError, match="VGG cannot be trained on text"):
        fit(network(), text, Settings(steps=1))
