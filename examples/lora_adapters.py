"""
One network with many adapters (LoRA): a batch has one adapter, whose weights are added once.

    celery batch redis                                            # prints lines for the others
    celery -A examples.lora_adapters worker --concurrency=1
    python -m examples.lora_adapters tone "what a night" "oh no"

The weights are random, but the same each time; real ones would be read from files in `load`.
"""

from __future__ import annotations

import sys
from typing import Any

from celery import Celery
from rich.console import Console

from celery_batch import Model

__all__ = ["AdaptedClassifier", "app", "classify", "main"]

app = Celery("lora_adapters")  # reads CELERY_BROKER_URL and CELERY_RESULT_BACKEND
app.conf.task_default_queue = "lora_adapters"  # other examples may share the broker

#: The labels of each adapter.
ADAPTERS = {"tone": ("glad", "sad", "angry"), "topic": ("sky", "sea", "farm")}

_BUCKETS, _WIDTH, _RANK, _LABELS = 512, 64, 4, 3


class AdaptedClassifier(Model):
    """A network of two layers, the second one with an adapter of low rank for each use."""

    #: `predict` gets one adapter, since all texts of a call have the same.
    batch_by = "adapter"

    def load(self, device: str) -> None:
        """Make the network that all uses share, and the small matrices of each adapter."""
        import torch  # noqa: PLC0415 - a client needs none

        made = torch.Generator().manual_seed(1)

        def weights(*shape: int) -> Any:
            return torch.randn(shape, generator=made).to(device)

        self.torch, self.device = torch, device
        self.words, self.hidden = weights(_BUCKETS, _WIDTH), weights(_WIDTH, _WIDTH)
        self.adapters = {
            name: (weights(_WIDTH, _RANK), weights(_RANK, _WIDTH), weights(_WIDTH, _LABELS))
            for name in sorted(ADAPTERS)
        }

    def examples(self) -> list[tuple[str, str]]:
        """Return texts for each adapter; the warm-up runs those of one adapter together."""
        return [(text, name) for name in ADAPTERS for text in ("a star", "the cow jumped")]

    def predict(self, text: list[str], adapter: str) -> list[Any]:
        """Return the label of each text."""
        if adapter not in self.adapters:  # a batch of no other requests
            return [ValueError(f"there is no adapter {adapter!r}")] * len(text)
        torch, (down, up, head) = self.torch, self.adapters[adapter]
        with torch.inference_mode():
            states = torch.stack([self._embed(each) for each in text])
            states = torch.tanh(states @ (self.hidden + down @ up))
            best = (states @ head).argmax(dim=1).tolist()
        return [ADAPTERS[adapter][label] for label in best]

    def _embed(self, text: str) -> Any:
        rows = [sum(word.lower().encode()) % _BUCKETS for word in text.split()] or [0]
        return self.words[rows].mean(dim=0)


classify = AdaptedClassifier.as_task(app, name="classify", max_batch_size=32)


def main(adapter: str, *texts: str) -> list[str]:
    """Print and return the label of each text."""
    labels: list[str] = classify.delay_rows(texts, adapter).get(timeout=60)
    for text, label in zip(texts, labels, strict=True):
        Console().print(f"{label}: {text}", highlight=False, markup=False)
    return labels


if __name__ == "__main__":
    main(*sys.argv[1:])
