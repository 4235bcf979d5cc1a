"""Conv-6: six 3x3 convolutions and three linear layers, without batch norm (Frankle & Carbin 2019)."""

from torch import Tensor, nn


def conv6(classes: int = 10, *, width: int = 64) -> "Conv6":
    """Conv-6 for 32x32 images, 2.26 million weights.

    Weights start from Glorot's normal distribution and biases from zero, as in the paper that introduced it.

    Args:
        classes: outputs of the last layer.
        width: outputs of the first convolution; 64 is Conv-6, less makes a small network of the same form.
    """
    return Conv6(classes, width)


class Conv6(nn.Module):
    """Three pairs of convolutions, each pair followed by max pooling; then 256, 256 and the classes."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for outputs in (width, 2 * width, 4 * width):
            for _ in range(2):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        hidden = 4 * width
        first, second, last = nn.Linear(16 * inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, classes)
        self.classifier = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_normal_(layer.weight)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits
