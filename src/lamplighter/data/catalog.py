"""The datasets by name: where each is found, what it should hold, and how its colours are normalised."""

from dataclasses import dataclass
from pathlib import Path

# Where datasets are kept once prepared, below the folder where a command runs.
PREPARED = Path("data")
Colours = tuple[float, float, float]


@dataclass(frozen=True)
class ImageSource:
    """A set of images.

    Args:
        hub: repository on the Hugging Face hub.
        config: configuration within it, and the folder that the hub keeps its files in.
        image: column of the images.
        label: column of the labels.
        classes: how many labels there are.
        counts: images of each split when complete, by the split's name in the files; the first is trained on.
        mean: of each colour.
        std: of each colour.
        groups: ranges of the source's labels (both ends included) that make up each class, if not one by one.
        size: pixels on a side; images of another size are an error. None for photographs of any size.
    """

    hub: str
    config: str
    image: str
    label: str
    classes: int
    counts: dict[str, int]
    mean: Colours
    std: Colours
    groups: dict[str, tuple[int, int]] | None = None
    size: int | None = 32


@dataclass(frozen=True)
class TextSource:
    """A text.

    Args:
        hub: repository on the Hugging Face hub.
        config: configuration within it, and the folder that the hub keeps its files in.
        revision: branch, if not the main one.
        column: column of the lines.
        counts: tokens of each split when complete, ends of lines included.
        aliases: how the names of its archives begin, besides the dataset's own name.
    """

    hub: str
    config: str
    revision: str | None
    column: str
    counts: dict[str, int]
    aliases: tuple[str, ...] = ()


# The paper prints 0.237 as the first standard deviation; its code, and everybody else, uses 0.247.
_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)

# Nine groups of ImageNet's 1,000 classes (Tsipras et al. 2019), ends included; the other classes are left out.
RESTRICTED_IMAGENET = {
    "dog": (151, 268),
    "cat": (281, 285),
    "frog": (30, 32),
    "turtle": (33, 37),
    "bird": (80, 100),
    "primate": (365, 382),
    "fish": (389, 397),
    "crab": (118, 121),
    "insect": (300, 319),
}

DATASETS: dict[str, ImageSource | TextSource] = {
    "cifar10": ImageSource(
        hub="uoft-cs/cifar10",
        config="plain_text",
        image="img",
        label="label",
        classes=10,
        counts={"train": 50_000, "test": 10_000},
        mean=_CIFAR_MEAN,
        std=_CIFAR_STD,
    ),
    "cifar100": ImageSource(
        hub="uoft-cs/cifar100",
        config="cifar100",
        image="img",
        label="fine_label",
        classes=100,
        counts={"train": 50_000, "test": 10_000},
        mean=_CIFAR_MEAN,
        std=_CIFAR_STD,
    ),
    "svhn": ImageSource(
        hub="ufldl-stanford/svhn",
        config="cropped_digits",
        image="image",
        label="label",
        classes=10,
        counts={"train": 73_257, "test": 26_032},
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.198, 0.201, 0.197),
    ),
    "restricted-imagenet": ImageSource(
        hub="ILSVRC/imagenet-1k",
        config="default",
        image="image",
        label="label",
        classes=9,
        counts={"train": 257_748, "validation": 10_150},
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        groups=RESTRICTED_IMAGENET,
        size=None,
    ),
    "ptb": TextSource(
        hub="ptb-text-only/ptb_text_only",
        config="penn_treebank",
        revision="refs/convert/parquet",
        column="sentence",
        counts={"train": 929_589, "valid": 73_760, "test": 82_430},
        aliases=("penn", "simple-examples"),
    ),
    "wikitext2": TextSource(
        hub="Salesforce/wikitext",
        config="wikitext-2-v1",
        revision=None,
        column="text",
        counts={"train": 2_088_628, "valid": 217_646, "test": 245_569},
        aliases=("wikitext-2",),
    ),
}
