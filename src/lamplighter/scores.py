"""How important each weight is: pure functions of a layer and of evidence collected beforehand."""

import difflib
import hashlib
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lamplighter.errors import LamplighterError
from lamplighter.parts import importance_here, is_spread
from lamplighter.plugins import load_function
from lamplighter.targets import Layer

Score = Callable[[Layer, Any], Tensor]

_CHUNK = 1 << 18
# The increment and the multipliers of the splitmix64 generator (Steele, Lea and Flood, 2014), as signed integers.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def importances(score: str | Callable[..., Any], layers: Iterable[Layer], evidence: Any = None) -> dict[str, Tensor]:  # noqa: ANN401
    """The importance of every weight: layer name -> tensor shaped as the layer's weight, or as what lies here of it.

    Magnitude is the weight itself, in its own dtype and memory; every other score is float32, finite and non-negative.

    Args:
        score: the name of a score, a function `(name, weight, evidence) -> importance`, or "module:function". A
            function is given a copy of the weight, so that nothing it does can change the model.
        layers: the layers that count.
        evidence: what the score needs beside the weights.

    >>> layer = Layer("fc", torch.tensor([3.0, -4.0]))
    >>> importances(lambda name, weight, evidence: weight.square(), [layer])
    {'fc': tensor([ 9., 16.])}
    """
    function = find_score(score)
    return {
        layer.name: importance_here(score, layer, evidence) if is_spread(layer.parameter) else function(layer, evidence)
        for layer in layers
    }


def find_score(score: str | Callable[..., Any]) -> Score:
    """The function of a layer and evidence that `score` means; its results are checked."""
    if isinstance(score, str):
        if score == "magnitude":
            return magnitude
        if score in SCORES:
            function, label = SCORES[score], score
            return lambda layer, evidence: checked(function(layer, evidence), layer, label)
    mine, name = user_function(score)
    # A copy: an in-place operation on the live weights would change the model, even from `allocate`.
    return lambda layer, evidence: checked(mine(layer.name, layer.weight.clone(), evidence), layer, name)


def user_function(score: str | Callable[..., Any]) -> tuple[Callable[..., Any], str]:
    """A function of the user's own that `score` is or names, and what it is called."""
    if isinstance(score, str):
        return _load(score), score
    if callable(score):
        return score, getattr(score, "__name__", type(score).__name__)
    raise LamplighterError(
        f"score is {score!r}, a {type(score).__name__}; expected a name or a function", f"use one of {_known()}"
    )


def magnitude(layer: Layer, evidence: object) -> Tensor:  # noqa: ARG001
    """The weight itself: what ranks magnitudes ignores the sign."""
    return layer.weight


def random(layer: Layer, evidence: object) -> Tensor:
    """Uniform in (0, 1), the same bits on every device: a hash of seed, layer name and place, not a generator's state.

    Evidence is the seed, 0 if there is none.
    """
    seed, weight = seed_of(evidence), layer.weight
    result = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
    flat = result.view(-1)
    for start in range(0, flat.numel(), _CHUNK):
        stop = min(start + _CHUNK, flat.numel())
        flat[start:stop] = random_values(layer.name, start, stop, seed, weight.device)
    return result


def seed_of(evidence: object) -> int:
    """The seed that evidence is, 0 if there is none."""
    seed = 0 if evidence is None else evidence
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise LamplighterError(
            f"score 'random' takes a seed as its evidence, got a {type(seed).__name__}",
            "pass evidence=0, or any integer",
        )
    return int(seed)


def random_values(name: str, start: int, stop: int, seed: int, device: torch.device) -> Tensor:
    """The random importances of a layer's entries `start` to `stop` (flat index, row-major), odd multiples of 2^-24.

    >>> random_values("fc.weight", 0, 3, seed=0, device=torch.device("cpu"))
    tensor([0.4001, 0.9401, 0.3759])
    """
    return random_at(name, torch.arange(start, stop, dtype=torch.int64, device=device), seed)


def random_at(name: str, places: Tensor, seed: int) -> Tensor:
    """The random importances of a layer's entries at some places (flat index, row-major), which are used up."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    bits = places
    bits.mul_(_STEP).add_(int.from_bytes(digest, "little", signed=True))
    bits.bitwise_xor_(_shifted(bits, 30)).mul_(_MIX_1)
    bits.bitwise_xor_(_shifted(bits, 27)).mul_(_MIX_2)
    bits.bitwise_xor_(_shifted(bits, 31))
    # 23 bits, so that twice that plus one is exact in float32 and neither 0 nor 1 can come out.
    return _shifted(bits, 41).mul_(2).add_(1).to(torch.float32).mul_(2.0**-24)


def snip(layer: Layer, evidence: object) -> Tensor:
    """|g w|, the first-order change of the loss when a weight is removed (Lee et al., 2019).

    Evidence maps parameter names to gradients, as `lamplighter.gradients` collects them.
    """
    found = _look_up(layer, evidence, "snip", "gradients(model, batches, loss)")
    weight = layer.weight
    if found.shape != weight.shape:
        raise _misfit(layer, "snip", "gradient", found, tuple(weight.shape))
    return (found.to(weight.device, torch.float32) * weight.to(torch.float32)).abs_()


def wanda(layer: Layer, evidence: object) -> Tensor:
    """|w| times the L2 norm of the input feature it multiplies (Sun et al., 2024).

    Evidence maps parameter names to input norms, as `lamplighter.input_norms` collects them: one number for each input
    feature, shaped to broadcast against the weight.
    """
    found = _look_up(layer, evidence, "wanda", "input_norms(model, batches)")
    weight = layer.weight
    try:
        found = found.expand(weight.shape)
    except RuntimeError as error:
        wanted = f"one that broadcasts to {tuple(weight.shape)}"
        raise _misfit(layer, "wanda", "input norm", found, wanted) from error
    return weight.to(torch.float32).abs() * found.to(weight.device, torch.float32)


SCORES: dict[str, Score] = {"magnitude": magnitude, "random": random, "snip": snip, "wanda": wanda}


def _known() -> str:
    return ", ".join(SCORES)


def _load(score: str) -> Callable[..., Any]:
    if ":" in score:
        return load_function(score, "score")
    near = difflib.get_close_matches(score.lower(), SCORES, n=1, cutoff=0.5)
    raise LamplighterError(
        f"unknown score {score!r}; the scores are {_known()}, a function, or 'module:function'",
        f"did you mean {near[0]!r}?" if near else f"use one of {_known()}",
    )


def _shifted(bits: Tensor, places: int) -> Tensor:
    """Shift right filling with zeros, as unsigned integers do."""
    return (bits >> places).bitwise_and_((1 << (64 - places)) - 1)


def _look_up(layer: Layer, evidence: object, score: str, collector: str) -> Tensor:
    """What the evidence holds for a layer; of a stack's evidence, the expert's part."""
    collect = f"pass evidence=lamplighter.{collector}"
    if not isinstance(evidence, Mapping):
        given = "none" if evidence is None else f"a {type(evidence).__name__}"
        raise LamplighterError(f"score {score!r} needs evidence for layer {layer.name!r}, got {given}", collect)
    found = evidence.get(layer.name)
    if found is None and layer.expert is not None:
        whole = evidence.get(layer.parameter_name)
        found = whole[layer.expert] if isinstance(whole, Tensor) and whole.shape == layer.parameter.shape else whole
    if not isinstance(found, Tensor):
        held = "nothing" if found is None else f"a {type(found).__name__}"
        raise LamplighterError(
            f"score {score!r} needs evidence for layer {layer.name!r}, which holds {held} for it",
            f"{collect}; if that cannot see the layer, leave it out with exclude={layer.parameter_name!r}",
        )
    return found.detach()


def _misfit(layer: Layer, score: str, what: str, found: Tensor, expected: object) -> LamplighterError:
    return LamplighterError(
        f"score {score!r}, layer {layer.name!r}: the {what} has shape {tuple(found.shape)}, expected {expected}",
        "collect the evidence from this model",
    )


def checked(importance: object, layer: Layer, score: str) -> Tensor:
    """An importance as float32 on the weight's device, or an error that names layer and score."""
    where = f"score {score!r}, layer {layer.name!r}"
    weight = layer.weight
    if not isinstance(importance, Tensor):
        raise LamplighterError(
            f"{where}: the importance is a {type(importance).__name__}, expected a Tensor",
            f"return a tensor of shape {tuple(weight.shape)}",
        )
    if importance.shape != weight.shape:
        raise LamplighterError(
            f"{where}: the importance has shape {tuple(importance.shape)}, expected {tuple(weight.shape)}",
            "return one number for each weight",
        )
    if importance.is_complex():
        raise LamplighterError(
            f"{where}: the importance is {importance.dtype}, expected real numbers",
            "return its absolute value: importance.abs()",
        )
    importance = importance.detach().to(weight.device, torch.float32)
    if not bool(importance.isfinite().all()):
        raise LamplighterError(
            f"{where}: the importance is NaN or infinite somewhere (in float32)",
            "check the weights and the evidence for NaN, infinite and very large values",
        )
    if bool((importance < 0).any()):
        raise LamplighterError(f"{where}: the importance is negative somewhere", "return its absolute value or square")
    return importance
