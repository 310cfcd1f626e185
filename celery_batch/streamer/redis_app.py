"""The Celery app of a streamer's Redis: its address, and the names of its queues and tasks."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import parse_qsl, urlencode

from celery import Celery

from celery_batch.errors import ConfigurationError

__all__ = ["DEFAULT", "app_for", "client_app", "connection_settings", "queue_of", "task_of"]

#: The Redis of programs that name none.
DEFAULT = "localhost:6379"

#: The environment variable with the Redis that is used in place of the default.
VARIABLE = "CELERY_BATCH_REDIS_BROKER"

_SCHEMES = ("redis", "rediss", "redis+socket", "sentinel")

_PLACE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:/@?#\s]+)(?::(\d{1,5}))?")

#: Seconds after which a stored result expires.
_RESULT_EXPIRES = 3600

_QUEUE = "streamer"

#: Seconds in which a Redis has to take a connection.
_CONNECT = 1.0

#: Retries for a Redis that may just be restarting.
_FOR_A_WHILE = {"max_retries": 4, "interval_start": 0.1, "interval_step": 0.2, "interval_max": 0.6}

#: One app, and so one connection for all replies, for each Redis.
_apps: dict[str, Celery] = {}


def connection_settings(redis_broker: str) -> dict[str, Any]:
    """
    Return the Celery settings for a Redis that is both broker and result backend.

    Args:
        redis_broker: ``"host:port"``, or a URL of Celery's: ``redis://``, ``rediss://``,
            ``redis+socket://``, or ``sentinel://`` with ``?master_name=...``.  The default
            is wherever the environment variable ``CELERY_BATCH_REDIS_BROKER`` says.

    Raises:
        ConfigurationError: It is no address of a Redis.
    """
    if not isinstance(redis_broker, str):
        raise ConfigurationError(
            f"redis_broker: must be a text, host:port or redis://..., got {redis_broker!r}"
        )
    if redis_broker == DEFAULT:
        redis_broker = os.environ.get(VARIABLE) or DEFAULT
    url, options = _url_of(redis_broker)
    return {
        "broker_url": url,
        # These two win over CELERY_BROKER_URL, which is for the application's own tasks.
        "broker_read_url": url,
        "broker_write_url": url,
        "result_backend": url,
        "broker_transport_options": options,
        "result_backend_transport_options": dict(options),
    }


def _url_of(given: str) -> tuple[str, dict[str, Any]]:
    scheme, mark, _ = given.partition("://")
    if not mark:
        return _from_place(given), {}
    if scheme not in _SCHEMES:
        raise ConfigurationError(
            f"redis_broker: {scheme}:// is no Redis; write host:port or one of"
            f" {', '.join(f'{each}://' for each in _SCHEMES)}"
            f" (for other brokers send BatchTask tasks yourself)"
        )
    base, _, query = given.partition("?")
    said = dict(parse_qsl(query, keep_blank_values=True))
    options = {}
    if scheme == "sentinel":
        options["master_name"] = said.pop("master_name", "")
        if not options["master_name"]:
            raise ConfigurationError(
                "redis_broker: sentinel:// needs the name of its Redis, ?master_name=..."
            )
    if scheme == "rediss":
        said.setdefault("ssl_cert_reqs", "required")
    return f"{base}?{urlencode(said)}" if said else base, options


def _from_place(given: str) -> str:
    found = _PLACE.fullmatch(given)
    if not found:
        raise ConfigurationError(
            f"redis_broker: {given!r} is no address; write host:port or redis://..."
        )
    return f"redis://{found[1]}:{found[2] or 6379}/0"


def queue_of(prefix: str) -> str:
    """Return the name of a prefix's queue."""
    if not isinstance(prefix, str):
        raise ConfigurationError(f"prefix: must be a text, got {prefix!r}")
    return f"{_QUEUE}.{prefix}" if prefix else _QUEUE


def task_of(prefix: str) -> str:
    """Return the name of the task that answers a prefix's items; see `queue_of`."""
    return f"{queue_of(prefix)}.predict"


def app_for(redis_broker: str, **settings: Any) -> Celery:
    """Return a new Celery app on a Redis; it does not become the process's current one."""
    place = connection_settings(redis_broker)
    url = place["broker_url"]
    app = Celery(_QUEUE, broker=url, set_as_current=False)
    app.conf.update(
        place,
        # With pickle, any client of this Redis could run code in this process.
        accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        result_expires=_RESULT_EXPIRES,
        broker_connection_retry_on_startup=True,
        **settings,
    )
    app.backend_cls = url  # which wins over CELERY_RESULT_BACKEND, as broker_read_url does
    app.finalize()
    return app


def client_app(redis_broker: str) -> Celery:
    """Return the app of all streamers of a Redis in this process."""
    settings = connection_settings(redis_broker)
    place = str(settings)
    found = _apps.get(place)
    if found is None:
        # Results are not waited for by Celery's code, which needs a backend for each thread;
        # to make one for each thread of a web server costs more than a request.
        # Another thread may have made one meanwhile.
        made = app_for(
            redis_broker,
            result_backend_thread_safe=True,
            # By default twenty tries, in 25 seconds, before a caller gets an error.
            result_backend_transport_options={
                **settings["result_backend_transport_options"],
                "retry_policy": {"max_retries": 1},
            },
            broker_transport_options={
                **settings["broker_transport_options"],
                **_FOR_A_WHILE,
                "socket_connect_timeout": _CONNECT,
            },
            redis_socket_connect_timeout=_CONNECT,
        )
        found = _apps.setdefault(place, made)
    return found
