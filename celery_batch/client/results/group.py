"""The result of a group whose members report to this process."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from typing import Any

from celery import states
from celery.result import GroupResult, assert_will_not_block
from celery.utils.functional import noop

from celery_batch.client.results.result import BatchResult
from celery_batch.client.results.waiting import ThreadWait

__all__ = ["BatchGroup", "adopt_groups"]

#: What `join_native` takes after ``timeout`` and ``propagate``.
_MORE = (
    *("interval", "callback", "no_ack"),
    *("on_message", "on_interval", "disable_sync_subtasks"),
)


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
        if on_message or not self._is_heard():
            return super().iter_native(  # type: ignore[no-any-return]
                timeout, interval, no_ack, on_message, on_interval
            )
        self._on_full.finalize()
        return self._receiver(ThreadWait(self.app, timeout, on_interval or noop))

    def join_native(
        self,
        timeout: float | None = None,
        propagate: bool = True,  # noqa: FBT001, FBT002 (Celery's signature)
        *more: Any,
        **options: Any,
    ) -> list[Any] | None:
        """
        Wait for all members, and return their results in order; see Celery.

        Args:
            timeout: Most seconds to wait for all of them.
            propagate: Raise the first error that comes, else return errors as values.
            more: Celery's other parameters, in their order.
            options: The same by name.

        Raises:
            TimeoutError: Celery's; they have not all ended by then.
            Exception: Whatever a member has failed with.
        """
        options.update(zip(_MORE, more, strict=False))
        if options.get("on_message") or not self._is_heard():
            return super().join_native(timeout, propagate, **options)  # type: ignore[no-any-return]
        if options.get("disable_sync_subtasks", True):
            assert_will_not_block()
        tell = options.get("callback")
        values: dict[str, Any] = {}
        patience = ThreadWait(self.app, timeout, options.get("on_interval") or noop)
        # An error keeps our frame, and with it the iterator, as long as its result lives.
        with closing(self._receiver(patience)) as arrivals:
            for task_id, meta in arrivals:
                value = values[task_id] = meta["result"]
                if propagate and meta["status"] in states.PROPAGATE_STATES:
                    raise value
                if tell:
                    tell(task_id, value)
        return None if tell else [values[member.id] for member in self.results]

    def _is_heard(self) -> bool:
        members = self.results
        return bool(members) and all(
            isinstance(each, BatchResult) and each.is_received for each in members
        )

    def _receiver(self, patience: ThreadWait) -> Generator[tuple[str, Any], None, None]:
        missing = {id(member): member for member in self.results}
        watched = []
        try:
            for member in self.results:
                watcher = partial(patience.ring, member)
                if member.reply.pending.watch(member.reply, watcher):
                    watched.append((member.reply, watcher))
                else:
                    watcher()
            while missing:
                member = patience.wait(partial(_first_ready, missing))
                if missing.pop(id(member), None) is not None:
                    yield member.id, member._get_task_meta()  # noqa: SLF001
        finally:
            for reply, watcher in watched:
                reply.pending.leave_soon(reply, watcher)


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
