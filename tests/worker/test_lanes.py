"""Who may use a slot next, and what becomes of a batch whichever way it ends."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, _state
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import TaskRevokedError
from celery.worker import state
from kombu.asynchronous import Hub

from celery_batch import BatchTask
from celery_batch.testing import ManualClock
from celery_batch.worker.job import BatchJob
from celery_batch.worker.lanes import Lanes
from celery_batch.worker.settle import run_batch


class Call:
    """One of Celery's requests, which remembers what it is told."""

    def __init__(self, task_id: str, heard: list[tuple[Any, ...]]) -> None:
        self.id = task_id
        self.name = "shop.task"
        self.request_dict = {"id": task_id, "args": (1,), "kwargs": {}}
        self.body, self.content_type, self.content_encoding = b"[]", "application/json", "utf-8"
        self.time_limits: tuple[float | None, float | None] = (None, None)
        self.unwanted = False
        self.heard = heard
        self._on_ack = self._on_reject = lambda: self.heard.append((self.id, "acknowledged"))
        state.task_reserved(self)

    def revoked(self) -> bool:
        """Whether nobody wants it any more."""
        return self.unwanted

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """A pool process has taken it."""
        self.heard.append((self.id, "accepted", pid, time_accepted))

    def on_success(self, settled: Any) -> None:
        """It has run; a late acknowledgement follows."""
        if settled == "explode":
            raise RuntimeError("the backend is gone")
        self.heard.append((self.id, "settled", settled))
        self._on_ack()

    def on_failure(self, einfo: Any) -> None:
        """It has failed."""
        self.heard.append((self.id, "failed", einfo))

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 (Celery's signature)
        """It took too long."""
        self.heard.append((self.id, "timeout", soft, timeout))
