"""A small text encoder that pads, and texts of unlike lengths for it."""

from __future__ import annotations

import random
import time
from typing import Any

from celery_batch import Model, padding

__all__ = [
    "LONGEST",
    "CompiledEncoder",
    "Embedder",
    "Encoder",
    "ShapedEncoder",
    "texts",
    "token_counts",
]

#: Tokens of the longest text.
LONGEST = 256

_VOCABULARY, _WIDTH = 1000, 128


def texts(count: int, seed: int = 1) -> list[list[int]]:
    """Return texts as token ids, their lengths log-normal: most are short, a few are long."""
    chance = random.Random(seed)
    lengths = _token_counts(chance, count)
    return [[chance.randrange(1, _VOCABULARY) for _ in range(length)] for length in lengths]


def token_counts(count: int, seed: int = 1) -> list[int]:
    """Return the lengths of so many texts, in tokens."""
    return _token_counts(random.Random(seed), count)


def _token_counts(chance: random.Random, count: int) -> list[int]:
    return [min(LONGEST, max(4, int(chance.lognormvariate(3.5, 0.8)))) for _ in range(count)]


class Encoder(Model):
    """A transformer of two layers on one core of a CPU, which pads a batch to its longest text."""

    def load(self, device: str) -> None:
        """Make it, always with the same weights."""
        import torch  # noqa: PLC0415 (only the process with the model imports it)

        torch.set_num_threads(1)
        torch.manual_seed(1)
        layer = torch.nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, batch_first=True)
        self._torch = torch
        self._embed = torch.nn.Embedding(_VOCABULARY, _WIDTH).to(device).eval()
        self._layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self._layers.to(device).eval()

    def examples(self) -> list[list[int]]:
        """Return a short text and the longest."""
        return texts(1)

    def predict(self, tokens: list[list[int]]) -> list[Any]:
        """Return a figure for each text, which depends on all its tokens, and when it began."""
        began = time.monotonic()
        return [(figure, began) for figure in self._means(tokens).norm(dim=1).tolist()]

    def _means(self, tokens: list[list[int]]) -> Any:
        torch = self._torch
        longest = max(map(len, tokens))
        padded = torch.tensor([each + [0] * (longest - len(each)) for each in tokens])
        mask = padded == 0
        with torch.inference_mode():
            states = self._layers(self._embed(padded), src_key_padding_mask=mask)
            kept = (~mask).unsqueeze(2)
            return (states * kept).sum(1) / kept.sum(1)


class Embedder(Encoder):
    """The same, with a vector of 128 numbers for each text."""

    def predict(self, tokens: list[list[int]]) -> list[Any]:
        """Return a vector for each text."""
        return self._means(tokens).tolist()  # type: ignore[no-any-return]


class CompiledEncoder(Encoder):
    """The same, compiled as torch does it: each time that a new shape is found."""

    def load(self, device: str) -> None:
        """Make it; torch compiles it when it is called."""
        super().load(device)
        torch = self._torch
        torch._dynamo.config.recompile_limit = 64  # noqa: SLF001 (as torch documents it)
        network = _Network(self._embed, self._layers)
        self._network = torch.compile(network.encode, dynamic=self._dynamic)

    #: Torch compiles for any shape once it has seen a second one.
    _dynamic: bool | None = None

    def _means(self, tokens: list[list[int]]) -> Any:
        padded, mask = self._pad(tokens)
        with self._torch.inference_mode():
            return self._network(padded, mask)

    def _pad(self, tokens: list[list[int]]) -> Any:
        return padding.pad_torch(tokens)


class ShapedEncoder(CompiledEncoder):
    """The same, compiled for each of a few shapes before the first task."""

    batch_sizes = (1, 4, 16)
    batch_lengths = (32, 64, 128, 256)
    _dynamic = False

    def example(self, length: int) -> list[int]:
        """Return a text of this length."""
        return [1] * length

    def _pad(self, tokens: list[list[int]]) -> Any:
        return padding.pad_torch(tokens, lengths=self.batch_lengths)


class _Network:
    """What is compiled."""

    def __init__(self, embed: Any, layers: Any) -> None:
        self._embed, self._layers = embed, layers

    def encode(self, tokens: Any, mask: Any) -> Any:
        """Return the mean of the states of each text."""
        states = self._layers(self._embed(tokens), src_key_padding_mask=~mask)
        return (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
