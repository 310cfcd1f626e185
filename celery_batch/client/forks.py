"""Locks of Celery's that another thread may have held when this process was forked."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from celery.app.amqp import AMQP
from celery.app.base import Celery, PendingConfiguration
from celery.app.control import Control
from celery.backends.base import Backend
from celery.result import ResultBase
from celery.utils.time import timezone
from kombu.connection import Connection
from kombu.transport.virtual import Channel, QoS
from kombu.utils.objects import cached_property

__all__ = ["renew_locks"]

#: Whose cached properties we read, and those of their subclasses.  Kombu locks such a property
#: each time it is read, for all objects of the class together; an app's settings are loaded
#: within such a lock, and each store or read of a result asks for some of the backend's.
_CLASSES = (
    *(AMQP, Backend, Celery, Channel, Connection, Control, PendingConfiguration, QoS),
    *(ResultBase, type(timezone)),
)


def renew_locks() -> None:
    """
    Give every cached property of Celery's apps and backends a lock that nobody holds.

    In a process just forked nobody else can hold one, and what a thread held that this
    process does not have would stay held for ever.
    """
    for each in set(_with_subclasses(_CLASSES)):
        for found in list(vars(each).values()):
            if isinstance(found, cached_property):
                found.lock = threading.RLock()


def _with_subclasses(classes: Iterable[type]) -> Iterator[type]:
    for each in classes:
        yield each
        yield from _with_subclasses(type.__subclasses__(each))
