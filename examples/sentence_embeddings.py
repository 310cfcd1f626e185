"""
Sentence embeddings: texts are batched by their tokens, and run in a few compiled shapes.

    celery batch redis                           # prints lines for the others
    celery -A examples.sentence_embeddings worker --concurrency=1 -l INFO  # logs the warm-up
    python -m examples.sentence_embeddings "a star shines" "stars shine" "the cow jumped"

Tokenizer and network are small and made here.  The weights are random, but the same each time,
so that texts which share words are alike.  On a GPU the network is compiled for each shape; on a
CPU it is only traced, which needs no C++ compiler.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from celery import Celery
from rich.console import Console

from celery_batch import Model, padding

__all__ = ["SentenceEncoder", "app", "embed", "main"]

app = Celery("sentence_embeddings")  # reads CELERY_BROKER_URL and CELERY_RESULT_BACKEND
app.conf.task_default_queue = "sentence_embeddings"  # other examples may share the broker

_TEXTS = Path(__file__).with_name("sentences.jsonl")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_VOCABULARY, _WIDTH = 400, 64

#: The worker forks its pool processes, and the tokenizer's threads would not survive that.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@cache
def tokenizer() -> Any:
    """Return a tokenizer; of a real model it would be read from a file."""
    import tokenizers as t  # noqa: PLC0415 - a client needs none

    found = t.Tokenizer(t.models.BPE())
    found.normalizer = t.normalizers.Lowercase()
    found.pre_tokenizer = t.pre_tokenizers.Whitespace()
    found.post_processor = t.processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 0)]
    )
    trainer = t.trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=["[CLS]"],
        initial_alphabet=list(_ALPHABET),
        show_progress=False,
    )
    lines = _TEXTS.read_text().splitlines()
    found.train_from_iterator([json.loads(line)["item"] for line in lines], trainer)
    found.enable_truncation(SentenceEncoder.batch_lengths[-1])
    return found


class SentenceEncoder(Model):
    """A transformer of two layers, and the mean of its states."""

    batch_sizes = (1, 4, 16)
    batch_lengths = (8, 16, 32, 64)

    @staticmethod
    def cost(text: str) -> int:
        """Count a text's tokens, in some microseconds; the worker's main process does this."""
        return len(tokenizer().encode(text))

    def load(self, device: str) -> None:
        """Make the network, which is compiled when it first sees a shape."""
        import torch  # noqa: PLC0415 - a client needs none

        # There is a compiled graph for each shape, and after a reload those of two networks.  By
        # default torch compiles no more than 8.
        torch._dynamo.config.recompile_limit = 64  # noqa: SLF001 - as torch documents it
        torch.manual_seed(1)
        backend = "inductor" if device.startswith("cuda") else "eager"
        network = _network(torch.nn).to(device).eval()
        self.torch, self.device = torch, device
        self.network: Any = torch.compile(network, dynamic=False, backend=backend)

    def example(self, length: int) -> str:
        """Return a text of so many tokens: one for its beginning, and one for each letter."""
        return " ".join("z" * (length - 1))

    def predict(self, texts: list[str]) -> Any:
        """Return an embedding of length 1 for each text."""
        rows = [encoding.ids for encoding in tokenizer().encode_batch(texts)]
        tokens, mask = padding.pad_torch(rows, lengths=self.batch_lengths, device=self.device)
        with self.torch.inference_mode():
            return self.network(tokens, mask)


def _network(nn: Any) -> Any:
    class Encoder(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(_WIDTH, 4, 2 * _WIDTH, batch_first=True)
            self.embed = nn.Embedding(_VOCABULARY, _WIDTH)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, tokens: Any, mask: Any) -> Any:
            states = self.layers(self.embed(tokens), src_key_padding_mask=~mask)
            means = (states * mask[:, :, None]).sum(1)
            return nn.functional.normalize(means, dim=1)

    return Encoder()


embed = SentenceEncoder.as_task(app, name="embed", max_batch_cost=512, padded=True)


def main(first: str, *others: str) -> list[float]:
    """Return how alike a text and others are, from -1 to 1; a new worker compiles for minutes."""
    results = embed.delay_many([first, *others])
    one, *rest = [result.get(timeout=600) for result in results]
    return [float(sum(a * b for a, b in zip(one, other, strict=True))) for other in rest]


if __name__ == "__main__":
    for text, likeness in zip(sys.argv[2:], main(*sys.argv[1:]), strict=True):
        Console().print(f"{likeness:6.3f} {text}")
