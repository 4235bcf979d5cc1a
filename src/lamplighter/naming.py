"""What names and shapes alone say of weights: their order, globs, and the discovery rule where there are no modules."""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence

import torch

from lamplighter.errors import LamplighterError

# A matrix is called `weight` by its layer; torch's MultiheadAttention holds its projections as parameters of its own.
ATTENTION_MATRICES = frozenset({"in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"})
_MATRICES = ATTENTION_MATRICES | {"weight"}
# One matrix per expert in one parameter: these names have no other use where they stand for a 3-D tensor itself.
_STACKS = frozenset({"gate_up_proj", "gate_proj", "up_proj", "down_proj"})
_STACK_OWNERS = frozenset({"input_linear", "output_linear"})
_EXPERT_WORDS = frozenset({"expert", "experts", "moe"})
_EMBEDDING_WORDS = frozenset(
    {"embed", "embeds", "embedding", "embeddings", "emb", "embs", "wte", "wpe", "position", "positions", "positional"}
    | {"pos", "codebook", "codebooks", "bias"}
)
_EMBEDDING_NAMES = frozenset({"shared", "token", "tokens"})
_NOT_STACKED = frozenset({"token", "tokens", "query", "queries", "scale", "scales", "bias"})
# An embedding's name beside one of these is a layer that computes with embeddings, not a table that is looked up.
_COMPUTING_WORDS = frozenset(
    {"patch", "patches", "time", "timestep", "proj", "project", "projection", "projector", "linear", "mapping"}
    | {"out", "dense", "conv", "head", "expert", "experts", "mlp", "fc"}
)
_NORM_WORDS = frozenset({"ln", "bn", "gn", "grn"})
# What quantisers call a weight that several entries share one integer of.
_PACKED = frozenset({"qweight", "weight_packed"})
# What stands beside a weight under a name that contains its own, as `weight_zero_point` does; and recurrent weights.
_COMPANIONS = frozenset(
    {"mask", "masks", "scale", "scales", "zero", "zeros", "point", "points", "idx", "index", "indices", "shape", "bits"}
    | {"ih", "hh"}
)
_NEVER_WEIGHTS = frozenset({torch.bool, torch.int64})
_PLAIN_FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})


def natural_key(name: str) -> tuple[tuple[int | str, ...], str]:
    """The key that sorts names as people count: `layers.2` before `layers.10`.

    >>> sorted(["layers.10", "layers.2", "head"], key=natural_key)
    ['head', 'layers.2', 'layers.10']
    """
    pieces = re.split(r"([0-9]+)", name)
    return tuple(int(piece) if place % 2 else piece for place, piece in enumerate(pieces)), name


def compile_glob(pattern: str) -> re.Pattern[str]:
    """A case-sensitive glob in which an expert's `[3]` stands for itself; use `.match`.

    >>> bool(compile_glob("*.down_proj[3]").match("mlp.experts.down_proj[3]"))
    True
    """
    literal = re.sub(r"\[([0-9]+)\]", r"[[]\1]", pattern)
    return re.compile(fnmatch.translate(literal))


def read_globs(globs: str | Iterable[str] | None, option: str) -> list[str]:
    """The globs of an option that may be one glob, several, or none."""
    if globs is None:
        return []
    patterns = [globs] if isinstance(globs, str) else list(globs) if isinstance(globs, Iterable) else [globs]
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise LamplighterError(
                f"{option} holds {pattern!r}, a {type(pattern).__name__}",
                f"{option} is a glob on parameter names, or a list of them, such as {option}='encoder.*'",
            )
    return patterns


def closest(wanted: str, known: Iterable[str]) -> str:
    """A hint that offers the names nearest to a mistaken one.

    >>> closest("conv9.weight", ["conv1.weight", "fc.bias"])
    'did you mean conv1.weight?'
    """
    names = list(known)
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"the names are {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else "there are no names"


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first few of some names, and how many more there are.

    >>> listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def is_embedding_name(name: str) -> bool:
    """Whether a parameter is by its name a table that is looked up or added, not a matrix that is multiplied with.

    >>> [is_embedding_name(name) for name in ("transformer.wte.weight", "patch_embeddings.projection.weight")]
    [True, False]
    """
    bearer = _bearer(name.split("."))
    words = _words(bearer)
    return bearer in _EMBEDDING_NAMES or (bool(words & _EMBEDDING_WORDS) and not words & _COMPUTING_WORDS)


def is_expert_stack(name: str, shape: Sequence[int]) -> bool:
    """Whether a 3-D parameter holds one matrix for each expert of a mixture.

    >>> is_expert_stack("layers.0.mlp.experts.down_proj", (8, 16, 24))
    True
    >>> is_expert_stack("layers.0.mlp.experts.3.conv.weight", (8, 16, 3))  # a convolution inside one expert
    False
    """
    path = name.split(".")
    if len(shape) != 3 or is_embedding_name(name) or _is_norm(path) or _words(path[-1]) & _NOT_STACKED:
        return False
    if path[-1] in _STACKS or (path[-1] == "weight" and path[-2:-1] and path[-2] in _STACK_OWNERS):
        return True
    mixtures = [place for place, part in enumerate(path) if _words(part) & _EXPERT_WORDS]
    if not mixtures or shape[0] == 1:
        return False
    below = path[mixtures[-1] + 1 :]
    return not any(part.isdigit() or "conv" in part.lower() for part in below)


def is_prunable_name(name: str, shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether a tensor of a checkpoint is prunable by default: the discovery rule on names, shapes and dtypes alone.

    Matrices and kernels (`*.weight` of two to five dimensions, the projections of `MultiheadAttention`) and expert
    stacks are; biases, norms and embeddings are not. A head is taken as prunable: whether it is tied to an embedding
    is for the caller to know. Weights stored quantised are chosen as well, so that the caller can refuse them by name
    instead of passing over them in silence.

    >>> is_prunable_name("model.layers.0.self_attn.q_proj.weight", (16, 16), torch.bfloat16)
    True
    >>> is_prunable_name("bert.embeddings.word_embeddings.weight", (64, 16), torch.float32)
    False
    """
    path = name.split(".")
    if dtype in _NEVER_WEIGHTS:
        return False
    if is_expert_stack(name, shape) or _is_packed_format(path[-1], dtype):
        return True
    if is_packed(name, shape, dtype):
        path[-1] = "weight"
    if path[-1] not in _MATRICES or not 2 <= len(shape) <= 5 or _is_norm(path):
        return False
    return len(shape) > 3 or not is_embedding_name(".".join(path))


def is_packed(name: str, shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether a tensor is by its name, shape and dtype a weight stored quantised: packed, or with scales elsewhere.

    >>> is_packed("fc.weight", (4, 4), torch.int8), is_packed("fc.weight_zero_point", (4, 1), torch.int8)
    (True, False)
    """
    leaf = name.rpartition(".")[2]
    if _is_packed_format(leaf, dtype):
        return True
    if len(shape) < 2 or dtype in _PLAIN_FLOATS or dtype in _NEVER_WEIGHTS or dtype.is_complex:
        return False
    return leaf == "W_q" or ("weight" in leaf.lower() and not _words(leaf) & _COMPANIONS)


def _is_packed_format(leaf: str, dtype: torch.dtype) -> bool:
    """Whether this is a name that only quantisers use."""
    return not dtype.is_floating_point and (leaf in _PACKED or (leaf.endswith("_proj_blocks") and dtype == torch.uint8))


def _bearer(path: list[str]) -> str:
    """The part of a name that says what the parameter is: its own, or if that is just `weight`, its layer's."""
    if path[-1] not in _MATRICES:
        return path[-1]
    owners = [part for part in path[:-1] if not part.isdigit()]
    return owners[-1] if owners else ""


def _words(part: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", part)}


def _is_norm(path: list[str]) -> bool:
    words = _words(_bearer(path))
    return bool(words & _NORM_WORDS) or any(word.endswith("norm") for word in words)
