"""The experiments of the paper, each a function that returns what to run; named on the command line.

Where the paper leaves a setting open, the function says what was chosen and that the choice is ours. Settings not
mentioned are the defaults of `Settings`: AdamW, learning rate 3e-4, weight decay 0.01, batches of 100.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from lamplighter.errors import LamplighterError
from lamplighter.experiments.spec import Spec
from lamplighter.models.transformer_xl import PRUNABLE
from lamplighter.naming import closest
from lamplighter.training.settings import Settings

Precision = Literal["fp32", "tf32", "bf16"]
METHODS = ("lamp", "global", "uniform", "uniform+", "erk")
# The columns of the paper's table for VGG-16: 6.87 % to 0.12 % of the weights.
_TABLE = tuple(range(12, 31, 2))


@dataclass(frozen=True)
class Recipe:
    """An experiment: what its runs have in common, and which of them there are unless others are asked for.

    Args:
        spec: of the dense run of seed 0.
        reproduces: the part of the paper.
        methods: the allocation methods it compares.
        rounds: the rounds it makes after the dense one.
        seeds: how many.
    """

    spec: Spec
    reproduces: str
    methods: tuple[str, ...] = METHODS
    rounds: tuple[int, ...] = tuple(range(1, 31))
    seeds: int = 5

    @property
    def name(self) -> str:
        """As on the command line."""
        return self.spec.recipe


Make = Callable[[float, Precision], Recipe]


def vgg16_cifar10(scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """VGG-16 on CIFAR-10: 50,000 steps, then 40,000 after each pruning."""
    spec = _spec("vgg16-cifar10", "vgg16", "cifar10", (50_000, 40_000), scale, precision=precision)
    return Recipe(spec, "figure: models; table: VGG-16 on CIFAR-10; figure: layerwise sparsity")


def resnet20_cifar10(scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """ResNet-20 on CIFAR-10. The paper's table of settings has no row for it: as VGG-16."""
    spec = _spec("resnet20-cifar10", "resnet20", "cifar10", (50_000, 40_000), scale, precision=precision)
    return Recipe(spec, "figure: models; table: ResNet-20 on CIFAR-10", rounds=tuple(range(1, 26)))


def densenet121_cifar10(scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """DenseNet-121 of growth 12 on CIFAR-10: 80,000 steps, then 60,000."""
    spec = _spec("densenet121-cifar10", "densenet121", "cifar10", (80_000, 60_000), scale, precision=precision)
    return Recipe(spec, "figure: models; table: DenseNet-121 on CIFAR-10", rounds=tuple(range(1, 23)))


def efficientnet_b0_cifar10(scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """EfficientNet-B0 with a stem of stride 1 on CIFAR-10: 50,000 steps, then 40,000."""
    spec = _spec("efficientnet-b0-cifar10", "efficientnet-b0", "cifar10", (50_000, 40_000), scale, precision=precision)
    return Recipe(spec, "figure: models; table: EfficientNet-B0 on CIFAR-10", rounds=tuple(range(1, 23)))


def vgg16_svhn(scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """VGG-16 on SVHN: 40,000 steps, then 30,000; crops with padding 2, no mirroring."""
    data = {"padding": 2, "flip": False, "precision": precision}
    spec = _spec("vgg16-svhn", "vgg16", "svhn", (40_000, 30_000), scale, **data)
    return Recipe(spec, "figure: datasets; table: VGG-16 on SVHN")


def vgg16_cifar100(scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """VGG-16 on CIFAR-100: 60,000 steps, then 50,000."""
    spec = _spec("vgg16-cifar100", "vgg16", "cifar100", (60_000, 50_000), scale, precision=precision)
    return Recipe(spec, "figure: datasets; table: VGG-16 on CIFAR-100", rounds=tuple(range(1, 28)))


def resnet34_restricted_imagenet(scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """ResNet-34 on Restricted ImageNet: 80,000 steps, then 80,000, batches of 128 crops of 224 pixels."""
    data = {"batch": 128, "crop": 224, "padding": 0, "precision": precision}
    name = "resnet34-restricted-imagenet"
    spec = _spec(name, "resnet34", "restricted-imagenet", (80_000, 80_000), scale, **data)
    return Recipe(spec, "figure: datasets", seeds=4)


def vgg16_cifar10_oneshot(scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """One dense VGG-16; for each density one pruning and one training of 40,000 steps."""
    spec = _spec("vgg16-cifar10-oneshot", "vgg16", "cifar10", (50_000, 40_000), scale, precision=precision)
    return Recipe(replace(spec, plan="one-shot"), "figure: ablations, one-shot", rounds=_TABLE)


def vgg16_cifar10_rewind(scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """Weight rewinding, Adam without weight decay.

    Ours: warm-up over 500 steps, rewinding to step 1,000, and 49,000 steps from there, to the end of the 50,000.
    """
    adam = {"optimizer": "adam", "weight_decay": 0.0, "precision": precision}
    spec = _spec("vgg16-cifar10-rewind", "vgg16", "cifar10", (50_000, 49_000), scale, **adam)
    dense = replace(spec.dense, warmup=round(500 * scale))
    rewound = replace(spec, dense=dense, plan="rewind", rewind_step=_steps(1000, scale))
    return Recipe(rewound, "figure: ablations, weight rewinding")


def conv6_cifar10_snip(scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """SNIP on an untrained Conv-6: |gradient * weight| of one batch of 128, then 50,000 steps.

    The paper's table has 50,000 and 40,000 for it; there is one training only, and 50,000 is our choice.
    """
    spec = _spec("conv6-cifar10-snip", "conv6", "cifar10", (0, 50_000), scale, batch=128, precision=precision)
    return Recipe(
        replace(spec, plan="untrained", score="snip"), "figure: ablations, SNIP", rounds=tuple(range(3, 31, 3))
    )


def vgg16_cifar10_extensive(scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """The schedule of Liu et al. (2019): SGD, 160 epochs of batches of 64, learning rate 0.1, a tenth at 1/2 and 3/4.

    Ours: 40 epochs after each pruning, learning rate 0.01, a tenth at 1/2.
    """
    sgd = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 1e-4, "batch": 64, "precision": precision}
    spec = _spec("vgg16-cifar10-extensive", "vgg16", "cifar10", (160 * 781, 40 * 781), scale, **sgd)
    dense, retrain = replace(spec.dense, drops=(0.5, 0.75)), replace(spec.retrain, lr=0.01, drops=(0.5,))
    return Recipe(replace(spec, dense=dense, retrain=retrain), "figure: extensive schedule")


def transformer_xl_ptb(scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """A simplified Transformer-XL on Penn Treebank: 200,000 steps, then 50,000, 20 columns of 70 words.

    Ours: gradients clipped to 0.25, as in the public recipe that the widths come from.
    """
    return _language_model("transformer-xl-ptb", "ptb", "Penn Treebank", scale, precision)


def transformer_xl_wikitext2(scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """The same on WikiText-2."""
    return _language_model("transformer-xl-wikitext2", "wikitext2", "WikiText-2", scale, precision)


def resnet50_imagenet_profile(scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """Peaks and crests: a ResNet-50 that comes trained on ImageNet, pruned once to 80, 41 and 21 %; no training."""
    name = "resnet50-imagenet-profile"
    spec = _spec(name, "resnet50", "imagenet-resnet50", (0, 0), scale, precision=precision)
    methods = ("lamp", "global", "erk")
    return Recipe(replace(spec, plan="profile"), "figure: peaks and crests", methods, rounds=(1, 4, 7), seeds=1)


def _language_model(name: str, dataset: str, title: str, scale: float, precision: Precision) -> Recipe:
    text = {"batch": 20, "length": 70, "clip": 0.25, "precision": precision}
    spec = _spec(name, "transformer-xl", dataset, (200_000, 50_000), scale, **text)
    methods = ("lamp", "global", "uniform", "erk")
    about = f"table: Transformer-XL on {title}"
    return Recipe(replace(spec, include=tuple(PRUNABLE)), about, methods, rounds=tuple(range(1, 16)))


def _spec(name: str, model: str, dataset: str, steps: tuple[int, int], scale: float, **settings: Any) -> Spec:  # noqa: ANN401
    dense, retrain = (Settings(steps=_steps(count, scale), **settings) for count in steps)
    return Spec(name, model, dataset, dense, retrain)


def _steps(count: int, scale: float) -> int:
    """A count of steps shortened by `scale`; what is not nothing stays at least one."""
    if not 0 < scale <= 1:
        raise LamplighterError(
            f"scale is {scale}, expected more than 0 and at most 1", "0.05 trains a twentieth as long"
        )
    return max(1, round(count * scale)) if count else 0


RECIPES: dict[str, Make] = {
    "vgg16-cifar10": vgg16_cifar10,
    "resnet20-cifar10": resnet20_cifar10,
    "densenet121-cifar10": densenet121_cifar10,
    "efficientnet-b0-cifar10": efficientnet_b0_cifar10,
    "vgg16-svhn": vgg16_svhn,
    "vgg16-cifar100": vgg16_cifar100,
    "resnet34-restricted-imagenet": resnet34_restricted_imagenet,
    "vgg16-cifar10-oneshot": vgg16_cifar10_oneshot,
    "vgg16-cifar10-rewind": vgg16_cifar10_rewind,
    "conv6-cifar10-snip": conv6_cifar10_snip,
    "vgg16-cifar10-extensive": vgg16_cifar10_extensive,
    "transformer-xl-ptb": transformer_xl_ptb,
    "transformer-xl-wikitext2": transformer_xl_wikitext2,
    "resnet50-imagenet-profile": resnet50_imagenet_profile,
}


def find_recipe(name: str, scale: float = 1.0, precision: Precision = "fp32") -> Recipe:
    """The recipe of a name.

    >>> find_recipe("vgg16-cifar10", scale=0.05).spec.retrain.steps
    2000
    """
    if name not in RECIPES:
        raise LamplighterError(f"there is no recipe {name}", closest(name, RECIPES))
    return RECIPES[name](scale, precision)
