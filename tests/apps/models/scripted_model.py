"""A model for the streamers' tests: it does as its items say, and remembers its batches."""

from __future__ import annotations

import os
import time

from celery.exceptions import Retry

from celery_batch import ManagedModel
from tests.apps.memory import memory, recall, remember


class ScriptedModel(ManagedModel):
    """Answers what it is asked about itself, and anything else with the same."""

    def init_model(self, greeting, *, to="nobody"):
        """Keep what the worker was given."""
        self.model = f"{greeting} {to}"

    def predict(self, batch):
        """Answer each item."""
        remember("lab", items=[str(item) for item in batch])
        return [self._answer(item) for item in batch]

    def _answer(self, item):
        match item:
            case "about":
                names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
                return [self.model, self.gpu_id, *map(os.environ.get, names)]
            case "bad":
                raise ValueError("a bad item")
            case "exit":
                os._exit(3)
            case "pid":
                return [os.getppid(), os.getpid()]
            case "retry" if not recall("retried"):
                remember("retried")
                return Retry(when=0)
            case "hold":
                remember("held")
                with memory() as client:
                    any(client.blpop("shop:let-go", timeout=1) for _ in range(60))
            case {"sleep": seconds}:
                time.sleep(seconds)
            case bytes():
                return item[::-1]
        return item
