"""Many calls of one kind, for which what they have in common is looked up once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from celery_batch.client.answers import expected
from celery_batch.client.call import AnyTemplate, Call
from celery_batch.client.expiry import expiry_of
from celery_batch.client.gathering import Gathering
from celery_batch.client.ids import new_id
from celery_batch.client.outbox import Outbox
from celery_batch.client.reprs import described
from celery_batch.client.result import BatchResult
from celery_batch.client.template import Fields
from celery_batch.client.terms import Terms

__all__ = ["Series"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Series(NamedTuple):
    """
    Calls of one task with the same options, by nobody's order and in nobody's name.

    Args:
        task: The task that is called.
        call: One of them, without arguments.
        terms: The app's settings.
        template: For their kind, its blanks filled in where all calls have the same.
        listener: Who hears their answers; None if nobody does.
        outbox: Of the app.
        still_holds: Whether all of this is as it was.
        pid: Of this process.
    """

    task: Any
    call: Call
    terms: Terms
    template: AnyTemplate
    listener: Any
    outbox: Outbox
    still_holds: Callable[[], bool]
    pid: int

    def holds(self) -> bool:
        """Return whether another call can be made: settings and listeners may change any time."""
        return self.pid == os.getpid() and self.still_holds()

    def send(
        self, args: Any, kwargs: Any, gathering: Gathering, own: Mapping[str, Any] = _NOTHING
    ) -> Any:
        """
        Make a call, and return its result; None if it has to go Celery's own road.

        Args:
            args: Positional arguments, or None.
            kwargs: Keyword arguments, or None.
            gathering: Keeps the message until it is written.
            own: The options that this series has left to its calls, all of them.

        Raises:
            TypeError: The arguments do not fit the task.
        """
        task, terms = self.task, self.terms
        call = self.call._replace(args=args, kwargs=kwargs)
        call.check(task)
        expiry = expiry_of(task.app, terms, own.get("expires", call.expires))
        if expiry is None:
            return None
        args, kwargs = args or (), kwargs or {}
        task_id = new_id()
        values: Fields = {
            "task_id": task_id,
            "root_id": task_id,
            "argsrepr": described(args, terms.args_limit, terms.repr_levels),
            "kwargsrepr": described(kwargs, terms.kwargs_limit, terms.repr_levels),
            **expiry,
        }
        if "headers" in own:
            values["headers"] = own["headers"]
        letter = self.template.letter((args, kwargs, self.template.embed), values)
        if letter is None:
            return None
        if self.listener is None:
            result = expected(task, task_id, None)
            result.ignored = call.options.get("ignore_result", task.ignore_result)
        else:
            result = BatchResult.of_call(task_id, task.app, self.listener.reply_to(task_id))
        gathering.add(letter, result, self.outbox)
        return result
