"""A simplified Transformer-XL: segment recurrence with memory, relative positions (Dai et al. 2019)."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The weights that the paper prunes: six matrices per block. Relative positions and embeddings stay dense.
PRUNABLE = [
    "layers.*.attention.query.weight",
    "layers.*.attention.key.weight",
    "layers.*.attention.value.weight",
    "layers.*.attention.output.weight",
    "layers.*.feedforward.ff1.weight",
    "layers.*.feedforward.ff2.weight",
]


def transformer_xl(
    words: int = 10_000,
    *,
    layers: int = 6,
    width: int = 380,
    heads: int = 10,
    inner: int = 900,
    memory: int = 70,
    tied: bool = True,
    dropout: float = 0.2,
    dropout_attention: float = 0.2,
    dropout_input: float = 0.6,
    dropout_output: float = 0.5,
) -> "TransformerXL":
    """Six layers, width 380, ten heads of 38, inner width 900: 7,569,600 weights in the matrices of `PRUNABLE`.

    The widths are those of the public Penn Treebank recipes of Transformer-XL; the paper on pruning does not print
    them, but says "approximately 7.57M" weights, which they give. The dropout rates follow those recipes without
    their dropout of whole words; they are a choice.

    Args:
        words: size of the vocabulary.
        layers: number of blocks.
        width: size of a position's vector.
        heads: attention heads; each has `width // heads` entries.
        inner: hidden size of the feed-forward part.
        memory: how many earlier positions are remembered from one segment to the next.
        tied: the last layer shares its weight with the embedding.
        dropout: after attention, inside and after the feed-forward part, and of the distances' vectors.
        dropout_attention: of the attention weights.
        dropout_input: of the embedded words.
        dropout_output: before the last layer.
    """
    rates = Dropouts(dropout, dropout_attention, dropout_input, dropout_output)
    return TransformerXL(
        words, layers=layers, width=width, heads=heads, inner=inner, memory=memory, tied=tied, rates=rates
    )


class Dropouts(NamedTuple):
    """Dropout rates by place."""

    hidden: float
    attention: float
    input: float
    output: float


class Memory(NamedTuple):
    """What every layer read at earlier positions: (layers, batch, memory, width), and how many of them are real."""

    states: Tensor
    filled: Tensor


def relative_shift(scores: Tensor) -> Tensor:
    """Turn scores by distance into scores by position, for the last two dimensions (queries, keys).

    Column c of the argument holds the score for distance keys - 1 - c; in the result, row i holds in column j the
    score for the distance from query i to key j. Entries to the right of the query are meaningless.
    """
    *batch, queries, keys = scores.shape
    padded = F.pad(scores, (1, 0)).reshape(*batch, keys + 1, queries)
    return padded[..., 1:, :].reshape(*batch, queries, keys)


def sinusoids(distances: Tensor, width: int) -> Tensor:
    """Sines, then cosines, of each distance at `width // 2` frequencies each."""
    exponents = torch.arange(0, width, 2, device=distances.device, dtype=torch.float32) / width
    angles = distances[:, None].float() * torch.pow(10_000.0, -exponents)
    return torch.cat((angles.sin(), angles.cos()), -1)[:, :width]


class RelativeAttention(nn.Module):
    """Attention to the segment and the memory, by content and by distance."""

    def __init__(self, width: int, heads: int, rates: Dropouts) -> None:
        super().__init__()
        self.heads = heads
        self.size = width // heads
        self.query = nn.Linear(width, heads * self.size, bias=False)
        self.key = nn.Linear(width, heads * self.size, bias=False)
        self.value = nn.Linear(width, heads * self.size, bias=False)
        self.output = nn.Linear(heads * self.size, width, bias=False)
        self.position = nn.Linear(width, heads * self.size, bias=False)
        self.content_bias = nn.Parameter(torch.empty(heads, 1, self.size))
        self.position_bias = nn.Parameter(torch.empty(heads, 1, self.size))
        self.dropout = nn.Dropout(rates.attention)

    def _split(self, x: Tensor) -> Tensor:
        """(..., positions, width) -> (..., heads, positions, size)."""
        return x.view(*x.shape[:-1], self.heads, self.size).transpose(-3, -2)

    def forward(self, x: Tensor, seen: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        """`seen` is the memory and `x` together; `hidden` is true where a query may not look at a key."""
        query = self._split(self.query(x))
        key, value = self._split(self.key(seen)), self._split(self.value(seen))
        distance = self._split(self.position(positions))
        by_content = (query + self.content_bias) @ key.transpose(-1, -2)
        by_distance = relative_shift((query + self.position_bias) @ distance.transpose(-1, -2))
        scores = (by_content + by_distance).float() / math.sqrt(self.size)
        weights = self.dropout(scores.masked_fill(hidden, -math.inf).softmax(-1))
        mixed = (weights.to(value.dtype) @ value).transpose(-3, -2).flatten(-2)
        result: Tensor = self.output(mixed)
        return result


class FeedForward(nn.Module):
    """Two linear layers with ReLU between them."""

    def __init__(self, width: int, inner: int, rate: float) -> None:
        super().__init__()
        self.ff1 = nn.Linear(width, inner)
        self.ff2 = nn.Linear(inner, width)
        self.dropout = nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.ff2(self.dropout(F.relu(self.ff1(x))))
        return result


class Block(nn.Module):
    """Attention and feed-forward, each with dropout, a shortcut around it and layer norm after it."""

    def __init__(self, width: int, heads: int, inner: int, rates: Dropouts) -> None:
        super().__init__()
        self.attention = RelativeAttention(width, heads, rates)
        self.norm1 = nn.LayerNorm(width)
        self.feedforward = FeedForward(width, inner, rates.hidden)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(rates.hidden)

    def forward(self, x: Tensor, remembered: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        seen = torch.cat((remembered.to(x.dtype), x), 1)
        x = self.norm1(x + self.dropout(self.attention(x, seen, positions, hidden)))
        result: Tensor = self.norm2(x + self.dropout(self.feedforward(x)))
        return result


class TransformerXL(nn.Module):
    """Predicts each next word of a segment from the segment so far and the memory of those before it."""

    def __init__(
        self, words: int, *, layers: int, width: int, heads: int, inner: int, memory: int, tied: bool, rates: Dropouts
    ) -> None:
        super().__init__()
        self.width = width
        self.memory = memory
        self.embedding = nn.Embedding(words, width)
        self.dropout_input = nn.Dropout(rates.input)
        self.dropout = nn.Dropout(rates.hidden)
        self.layers = nn.ModuleList(Block(width, heads, inner, rates) for _ in range(layers))
        self.dropout_output = nn.Dropout(rates.output)
        self.head = nn.Linear(width, words)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if tied:
            self.head.weight = self.embedding.weight

    def fresh_memory(self, batch: int) -> Memory:
        """A memory with nothing in it, of fixed size, so that every segment runs the same operations."""
        device = self.embedding.weight.device
        states = torch.zeros(len(self.layers), batch, self.memory, self.width, device=device)
        return Memory(states, torch.zeros((), dtype=torch.int64, device=device))

    def forward(self, tokens: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Logits (batch, positions, words) for the word after each of `tokens` (batch, positions), and new memory."""
        length = tokens.shape[1]
        keys = self.memory + length
        at = torch.arange(keys, device=tokens.device)
        later = at > at[self.memory :, None]
        hidden = later | (at < self.memory - memory.filled)
        positions = self.dropout(sinusoids(at.flip(0), self.width))
        x = self.dropout_input(self.embedding(tokens) * math.sqrt(self.width))
        read = []
        for layer, remembered in zip(self.layers, memory.states.unbind(), strict=True):
            read.append(torch.cat((remembered, x.detach().to(remembered.dtype)), 1)[:, length:])
            x = layer(x, remembered, positions, hidden)
        filled = (memory.filled + length).clamp(max=self.memory)
        logits: Tensor = self.head(self.dropout_output(x))
        return logits, Memory(torch.stack(read), filled)
