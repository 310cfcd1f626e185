"""A thread that polls the broker while calls need its answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from celery_batch.broker_depth import DepthReader, can_read_depth, open_depth_reader
from celery_batch.client.background import OnDemandThread, PerProcess

__all__ = ["BrokerPoller"]

T = TypeVar("T")


class BrokerPoller(PerProcess, ABC):
    """Polls an app's broker in one thread, over one connection that the thread alone uses."""

    thread_name: ClassVar[str]

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._can_read = can_read_depth(app)
        self._reader: DepthReader | None = None
        self._thread = OnDemandThread(self.thread_name, self._poll, self._close_reader)

    @abstractmethod
    def _poll(self) -> float | None:
        """Poll once; return the seconds until the next poll, None if no call needs one."""

    def _read(self, read: Callable[[DepthReader], T]) -> T:
        """Return what a function reads from the broker; connect again if the connection is lost."""
        was_open = self._reader is not None
        try:
            self._reader = self._reader or open_depth_reader(self._app)
            return read(self._reader)
        except Exception:
            self._close_reader()
            if not was_open:
                raise
        return self._read(read)

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            with suppress(Exception):
                reader.close()
