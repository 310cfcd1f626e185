"""Calls of several callers in one write, of which most are alike but for a few options."""

from __future__ import annotations

from typing import Any

from celery_batch.client.gathering import Gathering
from celery_batch.client.publisher import Publisher
from celery_batch.client.series import Series

__all__ = ["Alike"]

#: What each call of a web server's may have of its own: a deadline, and the name of its request.
_OWN = ("expires", "headers")


class Alike:
    """
    Makes calls one after another, and looks up once what those of one kind have in common.

    Nothing is kept from one write to the next: settings and listeners may change any time.

    Args:
        gathering: Keeps their messages until they are written.
    """

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering
        self._kind: Any = None
        self._series: Series | None = None

    def send(self, task: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
        """
        Make a call, and return its result; None if it has to go another way.

        Args:
            task: The task that is called; its calls have been counted in already.
            args: Positional arguments, or None.
            kwargs: Keyword arguments, or None.
            options: As `apply_async` takes them.

        Raises:
            TypeError: The arguments do not fit the task.
        """
        own = {name: options[name] for name in _OWN if options.get(name) is not None}
        if len(own) != len(options):
            return None
        headers = own.get("headers")
        if headers is not None and (type(headers) is not dict or not headers):
            return None
        kind = task, *own
        if kind != self._kind:
            self._kind = kind
            self._series = Publisher.of(task.app).series(task, options, own)
        return self._series and self._series.send(args, kwargs, self._gathering, own)
