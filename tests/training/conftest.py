"""Small data and networks that train in a fraction of a second, on one thread."""

import pytest
import torch

from lamplighter.data.dataset import Corpus, Dataset
from lamplighter.models.transformer_xl import transformer_xl
from lamplighter.models.vgg import vgg16


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def images():
    """64 random images of ten classes to train on, 30 to test on."""
    generator = torch.Generator().manual_seed(0)

    def some(count):
        pixels = torch.randint(256, (count, 32, 32, 3), dtype=torch.uint8, generator=generator)
        return pixels, torch.randint(10, (count,), generator=generator)

    return Dataset("example", *some(64), *some(30), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), classes=10)


@pytest.fixture(scope="session")
def text():
    """A text of 20 words, 400 of them in the training part."""
    words = torch.randint(20, (600,), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    return Corpus("example", words[:400], words[400:450], words[450:], tuple(map(str, range(20))))


@pytest.fixture
def network():
    """Makes a small network from a seed."""

    def make(seed=0, width=4):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return vgg16(10, width=width)

    return make


@pytest.fixture
def language_model():
    """Makes a small language model from a seed; without dropout unless asked."""

    def make(seed=0, rate=0.0):
        rates = dict.fromkeys(("dropout", "dropout_attention", "dropout_input", "dropout_output"), rate)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return transformer_xl(20, layers=2, width=12, heads=3, inner=16, memory=8, **rates)

    return make


@pytest.fixture
def random_masks():
    """Masks that keep about half of every matrix and convolution."""

    def make(model, seed=0):
        # Not the seed of a network, whose weights would come from the same numbers and be pruned by their sign.
        generator = torch.Generator().manual_seed(1000 + seed)
        weights = {name: p for name, p in model.named_parameters() if p.dim() > 1}
        return {name: torch.rand(p.shape, generator=generator) < 0.5 for name, p in weights.items()}

    return make
