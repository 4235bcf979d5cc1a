"""Ways to prune the same weights to the same sparsity, and the plain copy that bounds them all."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from lamplighter.pruning import prune

Weights = Mapping[str, Tensor]
Work = Callable[[], object]
# Called before the clock starts; what it returns is timed. The result of that is kept until memory has been measured.
Contender = Callable[[Weights, float], Work]


def lamplighter(weights: Weights, sparsity: float) -> Work:
    """LAMP allocation and masking in place, masks returned."""
    return lambda: prune(weights, sparsity=sparsity, method="lamp")


def listing(weights: Weights, sparsity: float) -> Work:
    """LAMP as the paper's appendix lays it out, see `prune_by_listing`."""
    return lambda: prune_by_listing(weights, sparsity)


def torch_global(weights: Weights, sparsity: float) -> Work:
    """`torch.nn.utils.prune.global_unstructured` by magnitude, on modules that hold the same weights."""
    pairs = [(_Holder(weight), "weight") for weight in weights.values()]

    def work() -> object:
        torch_prune.global_unstructured(pairs, pruning_method=torch_prune.L1Unstructured, amount=sparsity)
        return pairs

    return work


def copy(weights: Weights, sparsity: float) -> Work:  # noqa: ARG001
    """One plain copy into memory that is there already: next to nothing that reads and writes all weights is faster."""
    copies = {name: weight.clone() for name, weight in weights.items()}

    def work() -> object:
        for name, weight in weights.items():
            copies[name].copy_(weight)
        return copies

    return work


def prune_by_listing(weights: Weights, sparsity: float) -> dict[str, Tensor]:
    """Sort each layer, running sums, scores, one threshold over all of them, masks, multiply.

    The sum of squares runs from the largest magnitude down, which the listing's total minus running sum equals on paper
    but not in floating point. Computed in the weights' own dtype, as a user would run it.
    """
    scores = {name: lamp_scores(weight) for name, weight in weights.items()}
    everything = torch.cat([score.view(-1) for score in scores.values()])
    removed = round(sparsity * everything.numel())
    # The fastest of torch's ways to a threshold on a CPU: topk takes 1.5 times as long, a sort over 10 times.
    # Where nothing is to be removed, all scores are above -1.
    threshold = everything.kthvalue(removed).values if removed else -1.0
    masks = {name: score > threshold for name, score in scores.items()}
    for name, weight in weights.items():
        weight.mul_(masks[name])
    return masks


def lamp_scores(weight: Tensor) -> Tensor:
    """w_u^2 / sum of w_v^2 over |w_v| >= |w_u|: Eq. 1 of the paper."""
    squares, order = weight.reshape(-1).square().sort(descending=True)
    squares /= squares.cumsum(dim=0)
    scores = torch.empty_like(squares)
    scores[order] = squares
    return scores.view(weight.shape)


class _Holder(nn.Module):
    """One layer: a parameter in the memory of the weights it was given."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)


OURS = "lamplighter"
COPY = "copy"
CONTENDERS: dict[str, Contender] = {
    OURS: lamplighter,
    "paper's listing": listing,
    "torch global_unstructured": torch_global,
    COPY: copy,
}
