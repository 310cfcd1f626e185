"""Settings of Celery for a web process, whose clients wait."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from celery.app.defaults import DEFAULTS
from celery.signals import celeryd_init
from kombu.messaging import Producer

from celery_batch.broker_depth import driver_of
from celery_batch.errors import ConfigurationError

__all__ = ["prepare"]

logger = logging.getLogger(__name__)

#: Seconds to connect to a server, and to wait for its reply to one command.  Celery's own
#: defaults suit a worker, which can wait for minutes.
_CONNECT, _REPLY = 1.0, 2.0

#: One further try, at once: the client can ask again.
_ONCE_MORE = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}

_SINGLE: Mapping[str, Any] = {
    "broker_connection_timeout": _CONNECT,
    "broker_pool_acquire_timeout": _REPLY,
    "redis_socket_connect_timeout": _CONNECT,
    "redis_socket_timeout": _REPLY,
    "task_publish_retry_policy": _ONCE_MORE,
}

#: Other transports have options of their own.
_DRIVERS = ("redis", "amqp")

_MERGED: Mapping[str, Mapping[str, Any]] = {
    "result_backend_transport_options": {"retry_policy": _ONCE_MORE},
    "broker_transport_options": {
        "socket_connect_timeout": _CONNECT,
        "socket_timeout": _REPLY,
        "read_timeout": _REPLY,  # of py-amqp, as the next two
        "write_timeout": _REPLY,
        **_ONCE_MORE,  # for a channel that is opened before anything is sent
    },
}

#: What each prepared app's settings have become and what they were, by their names.
_prepared: WeakKeyDictionary[Celery, dict[str, tuple[Any, Any]]] = WeakKeyDictionary()


def _limit_greenlets(connection: Any) -> None:
    """Set the time-out on a gevent socket itself, where py-amqp's socket options have no effect."""
    sock = connection.transport.sock
    if type(sock).__module__.startswith("gevent."):
        sock.settimeout(_REPLY)


def prepare(app: Celery) -> None:
    """
    Set short time-outs and few retries on a Celery app, for a process that serves web requests.

    Connecting then takes at most 1 s a try, a command at most 2 s, and each is tried twice.
    That holds for control commands, such as revoke, too, which Celery retries until the broker
    is back.  A thread waits at most 2 s for one of the pool's connections.
    Settings that the app has itself are kept.  Call it before the app is first used.  It has no
    effect in a worker, which should be more patient and may import the web app's modules, as
    Django's does: a worker that starts restores what the app's settings were.

    Args:
        app: The app; only this process's copy changes.

    Raises:
        ConfigurationError: It is no Celery app.
    """
    if not isinstance(app, Celery):
        raise ConfigurationError(f"prepare() takes a Celery app, got {app!r:.60}")
    app = getattr(app, "_get_current_object", lambda: app)()  # of current_app
    if app.loader.worker_initialized:
        logger.info("prepare(%s) has no effect in a worker.", app.main)
        return
    _restore(app)  # what an earlier call has set
    for name, value in _SINGLE.items():
        if app.conf.get(name) == DEFAULTS.get(name):
            _set(app, name, value)
    for name, options in _MERGED.items():
        own = app.conf.get(name) or {}
        if name != "broker_transport_options":
            _set(app, name, {**options, **own})
        elif (driver := driver_of(app)) in _DRIVERS:
            # Only for RabbitMQ: a function among the options is no JSON, as replies of workers are.
            hook = {"on_open": _limit_greenlets} if driver == "amqp" else {}
            _set(app, name, {**options, **hook, **own})
    app.control.mailbox.producer_or_acquire = partial(_control_producer, app)


def _set(app: Celery, name: str, value: Any) -> None:
    _prepared.setdefault(app, {})[name] = (value, app.conf.get(name))
    app.conf[name] = value


def _restore(app: Celery) -> None:
    """Undo what was set, but for what has been set otherwise since."""
    for name, (value, former) in _prepared.pop(app, {}).items():
        if app.conf.get(name) is value:
            app.conf[name] = former
    vars(app.control.mailbox).pop("producer_or_acquire", None)


@celeryd_init.connect  # type: ignore[untyped-decorator]
def _restore_in_worker(instance: Any, **_: Any) -> None:
    """Undo `prepare` in a worker whose app's module, or one that it imports, has called it."""
    if instance.app in _prepared:
        logger.info("prepare(%s) has no effect in a worker.", instance.app.main)
        _restore(instance.app)


@contextmanager
def _control_producer(
    app: Celery, producer: Any = None, channel: Any = None
) -> Iterator[SimpleNamespace]:
    """Return a producer of control commands on a connection that its caller has already."""
    # kombu's own takes a second connection of the pool, so as many callers as the pool has
    # connections would wait for each other; and it retries until the broker is back.
    producer = producer or Producer(channel, auto_declare=False)
    policy = dict(app.conf.task_publish_retry_policy)
    yield SimpleNamespace(publish=partial(producer.publish, retry_policy=policy))
