"""The result of a group whose members are told to this process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from celery.result import GroupResult
from celery.utils.functional import noop

from celery_batch.client.patience import Patience
from celery_batch.client.result import BatchResult

__all__ = ["BatchGroup", "adopt_groups"]


class BatchGroup(GroupResult):  # type: ignore[misc]
    """Celery's result of a group, which hears of its members in our inbox where it can."""

    def iter_native(
        self,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,  # noqa: FBT001, FBT002 (Celery's signature)
        on_message: Any = None,
        on_interval: Any = None,
    ) -> Iterator[tuple[str, Any]]:
        """
        Return the members' ids and meta data as they come; see Celery.

        Args:
            timeout: Most seconds to wait for all of them.
            interval: Celery's, for members that are not told to us.
            no_ack: Likewise.
            on_message: Called with each message; if given, all is done in Celery's way.
            on_interval: Called about once a second.

        Raises:
            TimeoutError: Celery's; they have not all ended by then.
        """
        members = self.results
        heard = all(isinstance(each, BatchResult) and each.is_heard for each in members)
        if on_message or not members or not heard:
            return super().iter_native(  # type: ignore[no-any-return]
                timeout, interval, no_ack, on_message, on_interval
            )
        self._on_full.finalize()
        return self._arrivals(Patience(self.app, timeout, on_interval or noop))

    def _arrivals(self, patience: Patience) -> Iterator[tuple[str, Any]]:
        missing = {id(member): member for member in self.results}
        watched = []
        try:
            for member in self.results:
                watcher = partial(patience.ring, member)
                if member.reply.inbox.watch(member.reply, watcher):
                    watched.append((member.reply, watcher))
                else:
                    watcher()
            while missing:
                member = patience.wait(partial(_first_ready, missing))
                if missing.pop(id(member), None) is not None:
                    yield member.id, member._get_task_meta()  # noqa: SLF001
        finally:
            for reply, watcher in watched:
                reply.inbox.leave(reply, watcher)


def _first_ready(missing: dict[int, BatchResult]) -> BatchResult | None:
    return next((member for member in missing.values() if member.look()), None)


def adopt_groups(app: Any) -> None:
    """
    Have the app's groups hear of their members, unless it has a class of its own for them.

    Args:
        app: The Celery app.
    """
    if app.GroupResult.__bases__ == (GroupResult,):
        app.GroupResult = app.subclass_with_self(BatchGroup, reverse="GroupResult")
