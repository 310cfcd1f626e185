"""The bootstep that writes the health file."""

from __future__ import annotations

import os
from typing import Any

from celery import bootsteps

from celery_batch.worker.consumer_context import ConsumerContext
from celery_batch.worker.metrics.health import EVERY, HealthReport

__all__ = ["HealthStep"]


class HealthStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Reports the worker's health where the environment asks for it."""

    requires = ("celery_batch.worker.bootsteps:BatchConsumer",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._health = HealthReport.from_environ(os.environ)
        self._entry: Any = None

    def include_if(self, consumer: Any) -> bool:  # noqa: ARG002 (Celery's signature)
        """Return whether the environment asks for reports."""
        return self._health.is_wanted

    def create(self, consumer: Any) -> None:  # noqa: ARG002 (Celery's signature)
        """Report the start: models may take minutes to load."""
        self._health.enter("starting")

    def start(self, consumer: Any) -> None:
        """Send beats as long as this connection lasts."""
        config = ConsumerContext.of(consumer).runtime_config

        def beat() -> None:
            self._health.beat(drained=config.is_drained)

        beat()  # what follows the log's "ready." finds it here
        self._entry = consumer.timer.call_repeatedly(EVERY, beat)

    def stop(self, consumer: Any) -> None:
        """Report why the event loop ends."""
        if self._entry is not None:
            self._entry.cancel()
            self._entry = None
        restarting = consumer.blueprint.state == bootsteps.RUN
        self._health.enter("connecting" if restarting else "stopping")
