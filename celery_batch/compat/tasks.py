"""
Uses of the private parts of Celery's tasks, groups, requests and results.

Callers import this as well as workers, so it imports nothing of Celery's worker.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from operator import methodcaller
from typing import Any

from celery import Celery, Task, group
from celery.local import PromiseProxy

__all__ = [
    "call_options",
    "check_functions",
    "evaluate_tasks_once",
    "queue_of_calls",
    "raise_parent_error",
    "send_groups_with",
    "task_meta",
    "uses_backend_of_app",
]

#: Returns the options that a task gives to each of its calls; faster than a Python function.
call_options: Callable[[Any], dict[str, Any]] = methodcaller("_get_exec_options")

#: Returns the meta data of a result, which its backend is asked for if they are not known yet.
task_meta: Callable[[Any], dict[str, Any]] = methodcaller("_get_task_meta")

#: The first parameters of the method that sends a group, which are all that we rely on.
_KNOWN = ["self", "tasks", "producer", "app"]

#: Held by the thread that makes a task.  Another one waits for so many seconds at most: the first
#: may wait for what the other one holds, such as the lock of an import.
_evaluating, _LONGEST_WAIT = threading.RLock(), 1.0


def check_functions(check: Callable[[Any], object]) -> None:
    """Have what `app.task` decorates checked before Celery reads its signature."""
    own = Celery.type_checker

    @wraps(own)
    def type_checker(self: Any, fun: Any, *args: Any, **options: Any) -> Any:
        check(fun)
        return own(self, fun, *args, **options)

    Celery.type_checker = type_checker


def send_groups_with(send: Callable[[Any, Any, Any, Callable[..., Any]], Any]) -> None:
    """Have groups call `send` with app, tasks, producer, and Celery's method for the last two."""
    # Not where that method is not the one that we know.
    own = group._apply_tasks
    if getattr(own, "is_ours", False) or list(inspect.signature(own).parameters)[:4] != _KNOWN:
        return

    @wraps(own)
    def _apply_tasks(
        self: Any, tasks: Any, producer: Any = None, app: Any = None, *more: Any, **options: Any
    ) -> Iterator[Any]:
        app = app or self.app

        def apply(tasks: Any, producer: Any) -> Iterator[Any]:
            return own(self, tasks, producer, app, *more, **options)  # type: ignore[no-any-return]

        return send(app, tasks, producer, apply)  # type: ignore[no-any-return]

    _apply_tasks.is_ours = True  # type: ignore[attr-defined]
    group._apply_tasks = _apply_tasks


def evaluate_tasks_once() -> None:
    """Have threads that use a task at the same time, and are the first, all use it."""
    # Else one raises AttributeError, or makes the task again, which its first use makes.
    own = getattr(PromiseProxy, "__evaluate__", None)
    if own is None or getattr(own, "is_ours", False):
        return

    def evaluate(proxy: Any, *args: Any) -> Any:
        lock = _evaluating
        is_held = lock.acquire(timeout=_LONGEST_WAIT)
        try:
            try:
                return object.__getattribute__(proxy, "__thing")
            except AttributeError:
                return own(proxy, *args)
        finally:
            if is_held:
                lock.release()

    evaluate.is_ours = True  # type: ignore[attr-defined]
    PromiseProxy.__evaluate__ = evaluate
    os.register_at_fork(after_in_child=_renew_lock)  # another thread may hold it, which is no more


def _renew_lock() -> None:
    global _evaluating  # noqa: PLW0603 (one of the process)
    _evaluating = threading.RLock()


def queue_of_calls(task: Any, options: Mapping[str, Any] | None = None) -> str:
    """Return the name of the queue that calls of a task with some options go to."""
    options = {**call_options(task), **(options or {})}
    return str(task.app.amqp.router.route(options, task.name)["queue"].name)


def raise_parent_error(result: Any) -> None:
    """Raise what a task before that of a result, in a chain, has failed with."""
    result._maybe_reraise_parent_error()


def uses_backend_of_app(task: Any) -> bool:
    """Return whether a task has no result backend of its own, without making one for the app."""
    return type(task).backend is Task.backend and task._backend is None
