"""Uses of kombu's private parts."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from celery.app.amqp import AMQP
from celery.app.base import Celery, PendingConfiguration
from celery.app.control import Control
from celery.backends.base import Backend
from celery.result import ResultBase
from celery.utils.time import timezone
from kombu.connection import Connection
from kombu.transport.virtual import Channel, QoS
from kombu.utils.objects import cached_property

__all__ = ["renew_property_locks", "returns_here"]

#: Classes whose cached properties we read, with their subclasses.  Kombu locks such a property
#: each time it is read, for all objects of the class together; an app's settings are loaded
#: within such a lock, and each store or read of a result asks for some of the backend's.
_CLASSES = (
    *(AMQP, Backend, Celery, Channel, Connection, Control, PendingConfiguration, QoS),
    *(ResultBase, type(timezone)),
)


def renew_property_locks() -> None:
    """
    Give every cached property of Celery's apps and backends a new lock.

    No other thread can hold one in a process just forked, and one that a thread of the parent
    held at the fork would stay locked for ever.
    """
    for each in set(_with_subclasses(_CLASSES)):
        for found in list(vars(each).values()):
            if isinstance(found, cached_property):
                found.lock = threading.RLock()


def returns_here(consumer: Any, exchange: Any, routing_key: Any, consumer_tag: Any) -> bool:
    """Return whether a kombu consumer would receive a message again after its rejection."""
    channel = consumer.channel
    if hasattr(channel, "_lookup"):  # kombu's own exchanges
        queues = channel._lookup(exchange, routing_key)  # noqa: SLF001
        return any(map(consumer.consuming_from, queues))
    return consumer_tag in consumer._active_tags.values()  # noqa: SLF001


def _with_subclasses(classes: Iterable[type]) -> Iterator[type]:
    for each in classes:
        yield each
        yield from _with_subclasses(type.__subclasses__(each))
