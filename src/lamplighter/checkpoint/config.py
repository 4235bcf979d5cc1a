"""What a Hugging Face `config.json` says of weights that names and shapes leave open."""

from collections.abc import Mapping
from typing import Any

# Models whose linear layers are Hugging Face's `Conv1D`, which stores inputs first, and what those layers are called.
_TRANSPOSED = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp", "clvp_decoder"}
_CONV1D = {"c_attn", "c_proj", "c_fc", "q_attn"}


def says_tied(config: Mapping[str, Any]) -> bool | None:
    """Whether the head is the embedding; None where the config does not say."""
    for part in _parts(config):
        if isinstance(part.get("tie_word_embeddings"), bool):
            return bool(part["tie_word_embeddings"])
    return None


def stores_inputs_first(config: Mapping[str, Any], name: str) -> bool:
    """Whether the first axis of a matrix indexes inputs, because its layer is a `Conv1D`."""
    path = name.split(".")
    return (
        len(path) > 1 and path[-2] in _CONV1D and any(part.get("model_type") in _TRANSPOSED for part in _parts(config))
    )


def _parts(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The config, and those of the models it is made of."""
    return [config, *(each for each in config.values() if isinstance(each, Mapping) and "model_type" in each)]
