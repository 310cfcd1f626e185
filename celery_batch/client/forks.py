"""Locks of Celery's that another thread may have held when this process was forked."""

from __future__ import annotations

import threading

from celery.app.amqp import AMQP
from celery.app.base import Celery, PendingConfiguration
from kombu.connection import Connection
from kombu.utils.objects import cached_property

__all__ = ["renew_locks"]

#: Whose cached properties we read.  Kombu locks such a property each time it is read, for
#: all objects of the class together; an app's settings are loaded within such a lock.
_CLASSES = (Celery, PendingConfiguration, AMQP, Connection)


def renew_locks() -> None:
    """
    Give every cached property of Celery's apps a lock that nobody holds.

    In a process just forked nobody else can hold one, and what a thread held that this
    process does not have would stay held for ever.
    """
    for each in _CLASSES:
        for found in vars(each).values():
            if isinstance(found, cached_property):
                found.lock = threading.RLock()
