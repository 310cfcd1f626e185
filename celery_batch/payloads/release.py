"""Deletes payloads that are not needed any more, and renews those of requests that wait."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any
from weakref import WeakSet

from celery_batch.payloads.app_payloads import AppPayloads, seconds_until
from celery_batch.payloads.store import DirectoryPayloads, StoreError
from celery_batch.processes.fork_guard import forks_delayed
from celery_batch.processes.per_process import PerProcess

__all__ = ["PayloadRelease"]

logger = logging.getLogger(__name__)

#: Seconds until a payload is deleted: its message has surely been acknowledged by then.
_DELAY = 1.0

#: How often payloads are renewed within the time in which they expire; and at least so often, in
#: seconds, as one may have waited in the broker for most of that time.
_RENEWALS, _RENEW_EVERY = 3, 60.0

#: Seconds between two looks for files that have expired.
_SWEEP = 600.0

#: Keys in one round trip.
_AT_ONCE = 1000


class PayloadRelease(PerProcess):
    """Deletes and renews, in a thread, the payloads of the requests that a worker holds."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        #: Requests whose payloads are needed, as long as they exist.
        self._held: WeakSet[Any] = WeakSet()
        self._released: list[str] = []
        self._lock = threading.Lock()
        self._wakeup, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        now = time.monotonic()
        self._renew_at, self._sweep_at = now + self._interval, now

    @property
    def _interval(self) -> float:
        return min(AppPayloads.of(self._app).settings.expires / _RENEWALS, _RENEW_EVERY)

    def start(self) -> None:
        """Delete files that have expired from now on, also if no request here has a payload."""
        if isinstance(AppPayloads.of(self._app).store, DirectoryPayloads):
            with self._lock:
                self._start()

    def hold(self, request: Any) -> None:
        """Renew the payload of a request until it is released, or the request is gone."""
        with self._lock:
            self._held.add(request)
            self._start()

    def release(self, request: Any) -> None:
        """Delete the payload of a request, soon."""
        key, request.payload_key = request.payload_key, None
        with self._lock:
            self._held.discard(request)
            self._released.append(key)
            self._start()
        self._wakeup.set()

    def close(self) -> None:
        """Delete what was released, and end the thread; the app's next worker has another one."""
        self.drop()
        thread = self._thread
        if thread is not None:
            self._closing.set()
            self._wakeup.set()
            thread.join(_DELAY)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="batch-payloads", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wakeup.wait(self._interval)
            self._wakeup.clear()
            released = self._take()  # now: each is to wait
            is_last = self._closing.wait(_DELAY)
            released += self._take() if is_last else []
            try:
                with forks_delayed():  # it may connect while a process is replaced
                    self._work(released)
            except StoreError as error:
                logger.warning("Payloads could not be deleted or renewed, and expire: %s", error)
            except Exception:
                logger.exception("Payloads could not be deleted or renewed")

    def _take(self) -> list[str]:
        with self._lock:
            released, self._released = self._released, []
        return released

    def _work(self, released: list[str]) -> None:
        store = AppPayloads.of(self._app).store
        if store is None:
            return
        for first in range(0, len(released), _AT_ONCE):
            store.delete(released[first : first + _AT_ONCE])
        now = time.monotonic()
        if now >= self._renew_at:
            self._renew_at = now + self._interval
            store.renew(self._needed())
        if isinstance(store, DirectoryPayloads) and now >= self._sweep_at:
            self._sweep_at = now + _SWEEP
            store.sweep()

    def _needed(self) -> dict[str, float]:
        """Return the keys of the payloads that are needed, with the seconds until they expire."""
        expires = AppPayloads.of(self._app).settings.expires
        with self._lock:
            held = [(each.payload_key, each.request_dict.get("eta")) for each in self._held]
        return {key: expires + seconds_until(eta) for key, eta in held if key is not None}
