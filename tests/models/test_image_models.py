"""The networks for images compute what they should, in any memory format, and can be compiled whole."""

import pytest
import torch
from torch import nn

from lamplighter.models.conv6 import conv6
from lamplighter.models.densenet import densenet121
from lamplighter.models.efficientnet import efficientnet_b0
from lamplighter.models.resnet import PaddedShortcut, resnet18, resnet20, resnet34, resnet50
from lamplighter.models.vgg import vgg16

SMALL = {
    "vgg16": lambda: vgg16(10, width=4),
    "conv6": lambda: conv6(10, width=4),
    "resnet20": lambda: resnet20(10, width=4),
    "resnet18": lambda: resnet18(10, width=4),
    "resnet34": lambda: resnet34(10, width=4),
    "resnet50": lambda: resnet50(10, width=4),
    "densenet121": lambda: densenet121(10, growth=4, blocks=(2, 2)),
    "densenet121-imagenet": lambda: densenet121(10, growth=4, blocks=(2, 2), stem="imagenet"),
    "efficientnet-b0": lambda: efficientnet_b0(10, stages=((1, 8, 1, 1, 3), (6, 8, 2, 2, 5), (6, 16, 2, 1, 3))),
}
every_model = pytest.mark.parametrize("name", SMALL)


def images(count=4, size=32, seed=0):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


@every_model
def test_every_parameter_receives_a_gradient(name):
    torch.manual_seed(0)
    model = SMALL[name]()
    logits = model(images())
    assert logits.shape == (4, 10)
    nn.functional.cross_entropy(logits, torch.arange(4)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@every_model
def test_channels_last_gives_the_same_logits(name):
    torch.manual_seed(0)
    model = SMALL[name]().eval()
    with torch.no_grad():
        expected = model(images())
        model.to(memory_format=torch.channels_last)
        found = model(images().to(memory_format=torch.channels_last))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["vgg16", "resnet20", "densenet121", "efficientnet-b0"])
def test_no_control_flow_depends_on_data(name):
    """The whole network is one graph, which is what compilation and CUDA graphs need."""
    torch.manual_seed(0)
    model = SMALL[name]().eval()
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(images()), model(images()))
    torch.compiler.reset()


@every_model
def test_images_of_one_batch_do_not_meet_in_evaluation(name):
    torch.manual_seed(0)
    model = SMALL[name]().eval()
    with torch.no_grad():
        torch.testing.assert_close(model(images())[:1], model(images()[:1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("ours", "theirs"), [(resnet34, "resnet34"), (resnet50, "resnet50")])
def test_imagenet_resnets_equal_torchvision(ours, theirs):
    """Same names, same shapes, same outputs; torchvision halves the image in the 3x3 convolution."""
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    reference = getattr(models, theirs)(weights=None).eval()
    model = ours(1000).eval()
    model.load_state_dict(reference.state_dict(), strict=True)
    with torch.no_grad():
        torch.testing.assert_close(model(images(1, 64)), reference(images(1, 64)), rtol=1e-4, atol=1e-4)


def test_resnet50_can_halve_the_image_in_the_first_convolution_of_a_stage():
    with torch.device("meta"):
        model, usual = resnet50(stride_first=True), resnet50()
    block = model.get_submodule("layer2.0")
    assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    assert shapes == {name: value.shape for name, value in usual.state_dict().items()}


def test_a_padded_shortcut_keeps_every_other_pixel_and_adds_zeros():
    x = images(1, 4)
    y = PaddedShortcut(2)(x)
    assert y.shape == (1, 5, 2, 2)
    assert torch.equal(y[:, :3], x[:, :, ::2, ::2])
    assert not y[:, 3:].any()


def test_conv6_starts_from_glorots_distribution():
    torch.manual_seed(0)
    model = conv6(10)
    layer = model.features[2]
    expected = (2 / (64 * 9 + 64 * 9)) ** 0.5
    assert layer.weight.std().item() == pytest.approx(expected, rel=0.02)
    assert not layer.bias.any()


def test_efficientnet_skips_whole_blocks_in_training_only():
    torch.manual_seed(0)
    stages = ((1, 32, 2, 1, 3),)
    model = efficientnet_b0(10, stages=stages, dropout=0.0, drop_path=0.9)
    block = model.blocks[1]
    assert block.shortcut
    assert block.drop_path == pytest.approx(0.45)
    x = torch.randn(64, 32, 4, 4)
    skipped = (block(x) == x).flatten(1).all(1).float().mean().item()
    assert 0.2 < skipped < 0.7
    block.eval()
    assert not (block(x) == x).flatten(1).all(1).any()
