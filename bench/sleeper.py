"""The "bert" model for sentences."""

from __future__ import annotations

from bench.model import MODELS
from celery_batch import Model

__all__ = ["Sleeper", "expected"]


class Sleeper(Model):
    """A model that answers each sentence in capitals, in the time that BERT took."""

    def predict(self, batch: list[str]) -> list[str]:
        """Answer a batch."""
        MODELS["bert"]([0] * len(batch))
        return [expected(sentence) for sentence in batch]


def expected(sentence: str) -> str:
    """Return the model's answer to a sentence."""
    return sentence.upper()
