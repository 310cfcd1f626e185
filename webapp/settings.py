"""What an operator may set, and how long this process waits for its servers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from typing import Any, Self

from celery import Celery
from celery.backends.redis import RedisBackend

from celery_batch.errors import ConfigurationError

__all__ = ["Settings", "prepare"]


#: What the names of all settings begin with in the environment.
_PREFIX = "WEBAPP_"

#: What is set there and read elsewhere.
_FURTHER = frozenset({"WEBAPP_CONTRACT"})

#: How much of a name has to be right for the rest to be a mistake.
_NEAR = 0.8

#: What 0 turns off.
_OFF_AT_ZERO = frozenset({"hsts", "max_concurrent"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """
    The limits of the web tier.

    Args:
        timeout: Seconds from the first look at a request to its answer.
        max_body_bytes: Largest request body.
        max_inputs: Most inputs in one request.
        max_characters: Longest input.
        max_picture_bytes: Largest picture of an upload, whose body may be a third larger.
        max_pictures: Most pictures in one upload.
        max_pixels: Most pixels of a picture, however few its bytes.
        max_queue: Most inputs that may wait for a worker, of tasks that name no `max_queue`
            themselves; None for any number.
        share: Compute inputs once that are the same and in flight at the same time.
        cache_seconds: For how long an output answers the same input again; None for never.
        cache_items: Most outputs that are kept for that.
        task_timeout: Seconds until a task that nobody waits for must have reached the model.
        heartbeat: Seconds of silence after which a stream of events says that it is there.
        secret: Seals the ids of tasks; the same in all processes of a service.  By default
            it is made of the addresses of broker and result store.
        live_threads: Threads of the server that may tell what goes on; it is for those who
            look at the page, and who finds none free asks every two seconds.
        event_threads: Threads of the server that may tell the news of tasks; who finds none
            free is told how far its task is, and to ask again in two seconds.
        steer_jobs: Whether backfills may be paused, resumed and stopped over HTTP; they may
            always be seen.
        max_concurrent: Most requests that one client may have in hand in this process;
            0 for any number.
        rate: Most requests of one client in a stretch of time, such as ``100/second``;
            empty for any number.
        rate_store: Where processes count them together, ``redis://host/0``; without one
            each counts for itself.
        api_keys: Keys, of which a request must bring one; see `webapp.keys`.
        api_keys_file: The path of a file with keys, one a line.
        open_paths: Paths that need no key, beside the page and the probes.
        allowed_hosts: Names that this service goes by; empty, or ``*``, for any.
        cors_origins: Origins whose pages may ask, such as ``https://example.org``.
        trusted_proxies: Networks whose ``X-Forwarded-For`` is believed, and ``unix``.
        hsts: Seconds for which browsers shall use TLS only; 0 where no TLS is in front.
        log: ``text``, ``json``, or ``off`` to leave the log's format alone.
    """

    timeout: float = 10.0
    max_body_bytes: int = 1024 * 1024
    max_inputs: int = 256
    max_characters: int = 10_000
    max_picture_bytes: int = 10 * 1024 * 1024
    max_pictures: int = 16
    max_pixels: int = 50_000_000
    max_queue: int | None = None
    share: bool = False
    cache_seconds: float | None = None
    cache_items: int = 10_000
    task_timeout: float = 600.0
    heartbeat: float = 15.0
    secret: str = field(default="", repr=False)
    live_threads: int = 4
    event_threads: int = 32
    steer_jobs: bool = False
    max_concurrent: int = 1024
    rate: str = ""
    rate_store: str = field(default="", repr=False)
    api_keys: str = field(default="", repr=False)
    api_keys_file: str = ""
    open_paths: str = ""
    allowed_hosts: str = ""
    cors_origins: str = ""
    trusted_proxies: str = ""
    hsts: int = 0
    log: str = "text"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """
        Read the settings, each from its own variable: ``WEBAPP_TIMEOUT`` and so on.

        Raises:
            ConfigurationError: A value should be a positive number, or yes or no, and is not;
                or a name is nearly that of a setting.
        """
        given: dict[str, Any] = {}
        names = {f"{_PREFIX}{option.name.upper()}": option for option in fields(cls)}
        _check_spelling(environ, names.keys() | _FURTHER)
        for variable, option in names.items():
            if text := environ.get(variable):
                if text == "0" and option.name in _OFF_AT_ZERO:
                    given[option.name] = 0
                else:
                    given[option.name] = _READ[option.type](variable, text)
        return cls(**given)


def _check_spelling(environ: Mapping[str, str], known: AbstractSet[str]) -> None:
    """
    See that no variable is meant to be a setting and is none.

    Names that resemble none are others': Kubernetes tells of a service that is called
    ``webapp`` in ``WEBAPP_SERVICE_HOST``.
    """
    short = {name.removeprefix(_PREFIX): name for name in known}
    for variable in sorted(environ):
        if variable in known or not variable.startswith(_PREFIX):
            continue
        if near := get_close_matches(variable.removeprefix(_PREFIX), short, 1, _NEAR):
            raise ConfigurationError(
                f"{variable}: there is no such setting; did you mean {short[near[0]]}?"
            )


def _positive(variable: str, text: str, kind: type[Any]) -> Any:
    try:
        number = kind(text)
    except ValueError:
        number = 0
    if not (math.isfinite(number) and number > 0):
        wanted = "a whole number" if kind is int else "a number of seconds"
        raise ConfigurationError(f"{variable}: must be {wanted} above 0, got {text!r}")
    return number


def _switch(variable: str, text: str) -> bool:
    try:
        return _SWITCH[text.lower()]
    except KeyError:
        raise ConfigurationError(f"{variable}: must be 1 or 0, got {text!r}") from None


_SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}

#: By what a field is annotated with.
_READ: Mapping[Any, Callable[[str, str], Any]] = {
    "int": partial(_positive, kind=int),
    "int | None": partial(_positive, kind=int),
    "float": partial(_positive, kind=float),
    "float | None": partial(_positive, kind=float),
    "bool": _switch,
    "str": lambda _variable, text: text,
}


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
        **_ONCE_MORE,  # for a channel that is opened before anything is sent
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
