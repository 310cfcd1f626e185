"""Stores the payloads of calls before their messages are sent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from kombu.exceptions import OperationalError
from kombu.utils.functional import retry_over_time

from celery_batch.compat.deadline import current_deadline, waiting_until
from celery_batch.payloads.app_payloads import AppPayloads
from celery_batch.payloads.store import StoreAway, StoreError, StoreRefused

__all__ = ["Upload", "Uploads", "is_stored"]

#: Bytes of the largest payload that waits for others, as a copy: a caller may fill one array again
#: and again.
_LARGEST_COPY = 1 << 20


class Upload(NamedTuple):
    """The payload of a call."""

    task_id: str
    key: str
    data: Any
    seconds: float  # until it expires
    options: Mapping[str, Any]  # of the call
    deadline: float = math.inf  # when its caller gives up, by the monotonic clock

    @property
    def retries(self) -> tuple[Any, Any]:
        """How often storing it is tried again, as far as its call says so."""
        return self.options.get("retry"), self.options.get("retry_policy")

    @property
    def may_wait(self) -> bool:
        """Whether it may be stored with others: it has no retries of its own."""
        return self.retries == (None, None) and len(self.data) <= _LARGEST_COPY


class Uploads:
    """Payloads of calls that are written together, which are stored together before."""

    def __init__(self) -> None:
        #: Of one app, whose calls say nothing of retries.
        self._waiting: list[Upload] = []
        self._payloads: AppPayloads | None = None
        #: Bytes of those that wait.
        self.size = 0
        #: Why payloads are not stored, by the ids of the tasks whose messages cannot be sent.
        self.failed: dict[str, OperationalError] = {}
        #: The ids of tasks that a chord's body waits for.
        self._of_chords: set[str] = set()
        #: Why the app's store, which is away, is not asked again with these retries: each call
        #: would wait for it.
        self._away: tuple[tuple[Any, Any], OperationalError] | None = None

    def take(self, payloads: AppPayloads, upload: Upload) -> bool:
        """Take a payload, or store it at once; False if it is to travel in its message."""
        if payloads is not self._payloads:
            self.flush()
            self._payloads, self._away = payloads, None
        if upload.options.get("chord"):
            self._of_chords.add(upload.task_id)
        if error := self._error_if_away(upload):
            self.failed[upload.task_id] = error
            return True
        if payloads.is_allowed and upload.may_wait:
            copied = upload._replace(data=bytes(upload.data), deadline=current_deadline())
            self._waiting.append(copied)
            self.size += len(copied.data)
            return True
        try:
            return is_stored(payloads, upload)
        except OperationalError as error:
            self._note([upload], {upload.task_id: error}, current_deadline())
        return True

    def flush(self) -> None:
        """Store all that wait, and note which of them are not stored."""
        waiting, self._waiting, self.size = self._waiting, [], 0
        if not waiting or self._payloads is None:
            return
        if error := self._error_if_away(waiting[0]):
            self.failed.update(dict.fromkeys((each.task_id for each in waiting), error))
            return
        deadline = max(each.deadline for each in waiting)
        with waiting_until(deadline):
            self._note(waiting, _put(self._payloads, waiting), deadline)

    def require_chords(self) -> None:
        """Raise why a payload of a chord is not stored: its body would wait for ever."""
        for task_id in self._of_chords.intersection(self.failed):
            raise self.failed[task_id]

    def require(self, task_id: str) -> None:
        """Store all that wait; raise why the payload of a call, which is sent next, is not."""
        self.flush()
        if task_id in self.failed:
            raise self.failed[task_id]

    def _error_if_away(self, upload: Upload) -> OperationalError | None:
        """Return why the store is not asked for a payload; None if it is."""
        return self._away[1] if self._away and self._away[0] == upload.retries else None

    def _note(
        self, tried: list[Upload], failed: dict[str, OperationalError], deadline: float
    ) -> None:
        """Note which are not stored; if none is, the store may be away."""
        self.failed.update(failed)
        is_away = all(isinstance(error.__cause__, StoreAway) for error in failed.values())
        # Others' deadlines may be later, and do end.
        if is_away and len(failed) == len(tried) and deadline == math.inf:
            self._away = tried[0].retries, failed[tried[0].task_id]


def is_stored(payloads: AppPayloads, upload: Upload) -> bool:
    """Store the payload of a call now; False if that is not allowed."""
    error = _put(payloads, [upload]).get(upload.task_id)
    if error is None:
        payloads.is_allowed = True
        return True
    if not isinstance(error.__cause__, StoreRefused):
        raise error
    payloads.warn_once(
        "The payload store refuses values, which travel in their messages: %s", error.__cause__
    )
    return False


def _error_of_call(payloads: AppPayloads, error: StoreError) -> OperationalError:
    """Return what a call raises whose payload is not stored."""
    name = payloads.store.name if payloads.store else ""
    says = "refuses values" if isinstance(error, StoreRefused) else "cannot be reached"
    found = OperationalError(
        f"The payload store {says}: {str(error).rstrip('.')}. It is {name}: check it with"
        " celery batch check, or name another batch_payload_store; with False, values travel in"
        " their messages"
    )
    found.__cause__ = error
    return found


def _put(payloads: AppPayloads, uploads: list[Upload]) -> dict[str, OperationalError]:
    """Store payloads with equal retries; return why some are not stored, by their tasks' ids."""
    deadline, store = current_deadline(), payloads.store
    failed: dict[str, StoreError] = {}
    if store is None:
        return {}

    def put() -> None:
        nonlocal failed
        left = [each for each in uploads if each.key in failed] if failed else uploads
        failed = store.put_many([(each.key, each.data, each.seconds) for each in left])
        for error in failed.values():
            if not isinstance(error, StoreRefused):  # after which it does not help
                raise error

    def pause(error: Exception, pauses: Iterator[float], _retries: int) -> float:
        seconds = next(pauses)
        if monotonic() + seconds >= deadline:
            raise error
        return seconds

    with suppress(StoreError):  # it is among those that are returned
        retry_over_time(put, StoreError, errback=pause, **payloads.retry_policy(uploads[0].options))
    errors = {error: _error_of_call(payloads, error) for error in failed.values()}
    return {each.task_id: errors[failed[each.key]] for each in uploads if each.key in failed}
