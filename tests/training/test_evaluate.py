"""The score covers every test image and every word but the first."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from lamplighter.training.evaluate import Score, evaluate


def test_every_image_counts_once_whatever_the_batch(images, network):
    model = network().eval()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (images.mean, images.std))
    with torch.no_grad():
        logits = model((images.test_images.permute(0, 3, 1, 2).float() / 255 - mean) / std)
    right = int((logits.argmax(1) == images.test_labels).sum())
    loss = F.cross_entropy(logits, images.test_labels).item()
    for batch in (7, 30, 1000):
        score = evaluate(model, images, batch=batch)
        assert (score.correct, score.total) == (right, 30)
        assert score.loss == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("mode", [True, False])
def test_the_mode_of_the_network_is_restored(images, network, mode):
    model = network().train(mode)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    evaluate(model, images)
    assert model.training is mode
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_perplexity_counts_every_word_but_the_first(text, language_model):
    model = language_model().eval()
    words = text.test.long()
    with torch.no_grad():
        losses, memory = [], model.fresh_memory(1)
        for word, following in pairwise(words):
            logits, memory = model(word.view(1, 1), memory)
            losses.append(F.cross_entropy(logits[0], following.view(1)).item())
    score = evaluate(model, text, length=1)
    assert score.total == 149
    assert score.perplexity == pytest.approx(math.exp(sum(losses) / 149), rel=1e-5)
    assert evaluate(model, text, length=70).total == 149


def test_accuracy_and_perplexity_of_a_score():
    score = Score(correct=3, total=4, loss=math.log(50))
    assert (score.accuracy, score.perplexity) == (0.75, pytest.approx(50))
