"""The networks have exactly the weights that their papers and the common implementations give them."""

import pytest
import torch

from lamplighter.models import MODELS
from lamplighter.models.densenet import densenet121
from lamplighter.models.resnet import resnet50
from lamplighter.models.transformer_xl import transformer_xl
from lamplighter.models.vgg import vgg16


def count(model):
    """All parameters, and those with two dimensions or more: the weights of linear layers and convolutions."""
    parameters = list(model.parameters())
    return sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.dim() > 1)


@pytest.mark.parametrize(
    ("name", "classes", "parameters", "weights"),
    [
        ("vgg16", 10, 14_724_042, 14_715_584),
        ("vgg16", 100, 14_770_212, 14_761_664),
        ("conv6", 10, 2_262_602, 2_261_184),
        ("resnet20", 10, 269_722, 268_336),
        ("resnet18", 10, 11_173_962, 11_164_352),
        ("resnet34", 1000, 21_797_672, 21_779_648),
        ("resnet50", 1000, 25_557_032, 25_502_912),
        ("densenet121", 10, 1_000_618, 969_288),
        ("densenet121-imagenet", 1000, 7_978_856, 7_894_208),
        ("efficientnet-b0", 10, 4_020_358, 3_968_992),
        ("efficientnet-b0", 1000, 5_288_548, 5_236_192),
        ("efficientnet-b0-stride2", 10, 4_020_358, 3_968_992),
    ],
)
def test_image_models_have_the_known_number_of_parameters(name, classes, parameters, weights):
    with torch.device("meta"):
        assert count(MODELS[name](classes)) == (parameters, weights)


def test_a_tied_embedding_counts_once():
    with torch.device("meta"):
        tied, untied = transformer_xl(1000), transformer_xl(1000, tied=False)
    assert count(untied)[0] - count(tied)[0] == 1000 * 380


def test_no_convolution_before_batch_norm_has_a_bias():
    with torch.device("meta"):
        for model in (vgg16(), resnet50(), densenet121()):
            convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
            assert all(m.bias is None for m in convolutions)


def test_every_named_model_takes_the_number_of_classes():
    with torch.device("meta"):
        for name, constructor in MODELS.items():
            model = constructor(7)
            heads = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m.out_features == 7]
            assert len(heads) == 1, name
