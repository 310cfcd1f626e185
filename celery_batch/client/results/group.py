"""The result of a group whose members this process receives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery.result import GroupResult
from celery.utils.functional import noop

from celery_batch.client.results.result import BatchResult
from celery_batch.client.results.waiting import ThreadWaiter
from celery_batch.compat.tasks import task_meta

__all__ = ["BatchGroup", "adopt_groups"]


class BatchGroup(GroupResult):  # type: ignore[misc]
    """Celery's result of a group, whose members the app's listener receives where it can."""

    def iter_native(
        self,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,  # noqa: FBT001, FBT002 (Celery's signature)
        on_message: Any = None,
        on_interval: Any = None,
    ) -> Iterator[tuple[str, Any]]:
        """Return the members' ids and meta data as they come; see Celery."""
        if on_message or not self._is_received():
            return super().iter_native(  # type: ignore[no-any-return]
                timeout, interval, no_ack, on_message, on_interval
            )
        self._on_full.finalize()
        return self._receive(ThreadWaiter(self.app, timeout, on_interval or noop))

    def _is_received(self) -> bool:
        members = self.results
        return bool(members) and all(
            isinstance(each, BatchResult) and each.is_received for each in members
        )

    def _receive(self, waiter: ThreadWaiter) -> Iterator[tuple[str, Any]]:
        for member in waiter.arrivals(self.results):
            yield member.id, task_meta(member)


def adopt_groups(app: Any) -> None:
    """Have the app's groups be `BatchGroup` objects, unless it has a class of its own."""
    if app.GroupResult.__bases__ == (GroupResult,):
        app.GroupResult = app.subclass_with_self(BatchGroup, reverse="GroupResult")
