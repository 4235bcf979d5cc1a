"""VGG-16 for 32x32 images: thirteen 3x3 convolutions with batch norm and one linear layer."""

from torch import Tensor, nn

# The outputs of each convolution in units of `width`; the image is halved after each block.
_BLOCKS = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))


def vgg16(classes: int = 10, *, width: int = 64) -> "VGG":
    """VGG-16 as the pruning literature uses it on CIFAR (Liu et al. 2019, Frankle & Carbin 2019).

    The image is halved by max pooling after each of the first four blocks and averaged after the fifth. The
    convolutions have no bias: batch norm subtracts the mean right after them, so a bias would change nothing that
    the network computes, and cost time.

    Args:
        classes: outputs of the last layer.
        width: outputs of the first convolution; 64 is VGG-16, less makes a small network of the same form.
    """
    return VGG(classes, width)


class VGG(nn.Module):
    """Blocks of convolution, batch norm and ReLU, then a linear layer on the average over what is left of the image."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for block in _BLOCKS:
            if layers:
                layers.append(nn.MaxPool2d(2))
            for multiple in block:
                outputs = multiple * width
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
                inputs = outputs
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.features(images)
        logits: Tensor = self.classifier(features.mean((2, 3)))
        return logits
