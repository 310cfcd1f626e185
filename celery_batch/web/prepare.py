"""Settings of Celery for a web process, whose clients wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.app.defaults import DEFAULTS

__all__ = ["prepare"]

#: Seconds to connect to a server, and to wait for its reply to one command.  Celery's own
#: defaults suit a worker, which can wait for minutes.
_CONNECT, _REPLY = 1.0, 2.0

#: One further try, at once: the client can ask again.
_ONCE_MORE = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}


def _limit_greenlets(connection: Any) -> None:
    """
    Set the time-out on a gevent socket itself.

    py-amqp sets SO_RCVTIMEO and SO_SNDTIMEO.  These have no effect on gevent's sockets, which
    never block in the kernel.
    """
    sock = connection.transport.sock
    if type(sock).__module__.startswith("gevent."):
        sock.settimeout(_REPLY)


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
        "read_timeout": _REPLY,  # of py-amqp, as the next two
        "write_timeout": _REPLY,
        "on_open": _limit_greenlets,
        **_ONCE_MORE,  # for a channel that is opened before anything is sent
    },
}


def prepare(app: Celery) -> None:
    """
    Set short time-outs and few retries on a Celery app, for a process that serves web requests.

    Connecting then takes at most 1 s a try, a command at most 2 s, and each is tried twice.
    That holds for control commands, such as revoke, too: Celery tries these until the broker
    is back.
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
    app.control.mailbox._producer_pool = _ControlProducers(app)  # noqa: SLF001


class _ControlProducers:
    """
    Producers of control commands, which retry as calls of tasks do; kombu's own never give up.

    Args:
        app: The app.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app

    @contextmanager
    def acquire(self) -> Iterator[SimpleNamespace]:
        """Lend a producer of the app's pool."""
        policy = dict(self._app.conf.task_publish_retry_policy)
        with self._app.amqp.producer_pool.acquire() as producer:
            yield SimpleNamespace(publish=partial(producer.publish, retry_policy=policy))
