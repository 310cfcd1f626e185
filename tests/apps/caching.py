"""The Celery app of the tests of a cache that is emptied, shared or away."""

from __future__ import annotations

import json
import os
from pathlib import Path

from celery import Celery

from celery_batch import BatchTask, Model
from tests.apps.memory import memory, patient_cache, recall, remember

__all__ = ["app", "memory", "recall", "remember"]

app = Celery("caching")
app.conf.update(result_expires=600, broker_connection_retry_on_startup=True)
if (_backend := os.environ.get("CELERY_RESULT_BACKEND", "")).startswith("redis"):
    app.conf.batch_cache_url = patient_cache(_backend)
app.conf.update(json.loads(os.environ.get("TESTS_CONF", "{}")))


class Weighed(Model):
    """Answers with the weights that it was loaded with."""

    version = os.environ.get("CACHING_VERSION", "1")

    def load(self, _device):
        """Read the weights."""
        path = Path(os.environ.get("CACHING_WEIGHTS", "/nonexistent"))
        self.weights = path.read_text() if path.exists() else "none"

    def predict(self, batch):
        """Name the weights, and remember the batch."""
        remember("weighed", items=batch)
        return [(x, self.weights) for x in batch]


weighed = Weighed.as_task(app, name="caching.weighed", max_batch_size=8, cache_ttl=600)


@app.task(base=BatchTask, name="caching.tokens", cache_ttl=600, cost="text", max_batch_cost=20,
          padded=True, linger=0.1, max_wait=1.0)  # fmt: skip
def tokens(text):
    """Count the tokens of texts, and remember what each call costs."""
    remember("tokens", items=[len(each) for each in text])
    return [len(each) for each in text]
