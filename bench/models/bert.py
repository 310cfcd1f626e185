"""The "bert" model for sentences; as a program, so many workers behind Redis that have it."""

from __future__ import annotations

import sys

from bench.models.reference import MODELS
from celery_batch import Model

__all__ = ["BertModel", "expected"]


class BertModel(Model):
    """A model that answers each sentence in capitals, in the time that BERT took."""

    def predict(self, batch: list[str]) -> list[str]:
        """Answer a batch."""
        MODELS["bert"]([0] * len(batch))
        return [expected(sentence) for sentence in batch]


def expected(sentence: str) -> str:
    """Return the model's answer to a sentence."""
    return sentence.upper()


if __name__ == "__main__":
    # The workers' processes import the model by name, and this file a second time, so it is short.
    from bench.models.bert import BertModel as Known
    from examples.infill_redis_workers import main

    main(Known, worker_num=int(sys.argv[1]))
