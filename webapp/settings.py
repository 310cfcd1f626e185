"""What an operator may set, and how long this process waits for its servers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from celery import Celery
from celery.backends.redis import RedisBackend

from celery_batch.errors import ConfigurationError

__all__ = ["Settings", "prepare"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """
    The limits of the web tier.

    Args:
        timeout: Seconds from the first look at a request to its answer.
        max_body_bytes: Largest request body.
        max_inputs: Most inputs in one request.
        max_characters: Longest input.
    """

    timeout: float = 10.0
    max_body_bytes: int = 1024 * 1024
    max_inputs: int = 256
    max_characters: int = 10_000

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """
        Read the settings, each from its own variable: ``WEBAPP_TIMEOUT`` and so on.

        Raises:
            ConfigurationError: A value is not a positive number.
        """
        given = {}
        for option in fields(cls):
            variable = f"WEBAPP_{option.name.upper()}"
            if text := environ.get(variable):
                given[option.name] = _positive(variable, text, type(option.default))
        return cls(**given)


def _positive(variable: str, text: str, kind: type[Any]) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = 0
    if not (math.isfinite(number) and number > 0):
        wanted = "a whole number" if kind is int else "a number of seconds"
        raise ConfigurationError(f"{variable}: must be {wanted} above 0, got {text!r}")
    return number


#: Seconds to connect to a server, and to wait for its reply to one command.  A worker can be
#: patient (two minutes, by default); a web server has clients that wait.
_CONNECT, _REPLY = 1.0, 2.0

#: At most one further try, at once: whoever asked can ask again.
_ONCE_MORE = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}

_SINGLE: Mapping[str, Any] = {
    # One back end, and so one subscription to results, for all threads of this process.
    "result_backend_thread_safe": True,
    "redis_socket_connect_timeout": _CONNECT,
    "redis_socket_timeout": _REPLY,
    "task_publish_retry_policy": _ONCE_MORE,
}

_MERGED: Mapping[str, Mapping[str, Any]] = {
    "result_backend_transport_options": {"retry_policy": _ONCE_MORE},
    "broker_transport_options": {
        "socket_connect_timeout": _CONNECT,
        "socket_timeout": _REPLY,
    },
}


def prepare(app: Celery) -> None:
    """
    Make a Celery app fit to send from a web server, before it is first used.

    What the app sets itself stays as it is, apart from the one shared back end.

    Args:
        app: The app whose tasks are sent; only this process's copy changes.

    Raises:
        ConfigurationError: Answers of this app cannot be awaited.
    """
    chosen = app.conf.table(censored=False)
    for name, value in _SINGLE.items():
        if name not in chosen or name == "result_backend_thread_safe":
            app.conf[name] = value
    for name, options in _MERGED.items():
        app.conf[name] = {**options, **(chosen.get(name) or {})}
    if app.conf.task_always_eager:
        raise ConfigurationError("task_always_eager: the web tier needs real workers; unset it")
    if not isinstance(app.backend, RedisBackend):
        raise ConfigurationError(
            f"result_backend: answers are awaited through Redis, not {app.backend.as_uri()!r}; "
            "set CELERY_RESULT_BACKEND to the URL of a Redis"
        )
    if not app.backend.thread_safe:
        raise ConfigurationError("this Celery app was used before the web tier prepared it")
