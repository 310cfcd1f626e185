"""Settings of Celery for a web process, whose clients wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.app.defaults import DEFAULTS

__all__ = ["prepare"]

#: Seconds to connect to a server, and to wait for its reply to one command.  Celery's own
#: defaults suit a worker, which can wait for minutes.
_CONNECT, _REPLY = 1.0, 2.0

#: One further try, at once: the client can ask again.
_ONCE_MORE = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}

_SINGLE: Mapping[str, Any] = {
    "broker_connection_timeout": _CONNECT,
    "redis_socket_connect_timeout": _CONNECT,
    "redis_socket_timeout": _REPLY,
    "task_publish_retry_policy": _ONCE_MORE,
}

_MERGED: Mapping[str, Mapping[str, Any]] = {
    "result_backend_transport_options": {"retry_policy": _ONCE_MORE},
    "broker_transport_options": {
        "socket_connect_timeout": _CONNECT,
        "socket_timeout": _REPLY,
        "read_timeout": _REPLY,  # of py-amqp, as the next
        "write_timeout": _REPLY,
        **_ONCE_MORE,  # for a channel that is opened before anything is sent
    },
}


def prepare(app: Celery) -> None:
    """
    Set short time-outs and few retries on a Celery app, for a process that serves web requests.

    Connecting then takes at most 1 s a try, a command at most 2 s, and each is tried twice.
    Settings that the app has itself are kept.  Call it in the web process alone and before the
    app is first used: a worker should be more patient.

    Args:
        app: The app; only this process's copy changes.
    """
    conf = app.conf
    for name, value in _SINGLE.items():
        if conf.get(name) == DEFAULTS.get(name):
            conf[name] = value
    for name, options in _MERGED.items():
        conf[name] = {**options, **(conf.get(name) or {})}
