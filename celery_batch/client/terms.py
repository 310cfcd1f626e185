"""The settings that a call depends on, looked up again when one has changed."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_batch.config import most_queued

__all__ = ["Terms"]

#: Celery's message protocol that has headers.
_WITH_HEADERS = 2


class Terms:
    """
    What an app's settings say of its calls at one time.

    Looking a setting up costs more than the rest of a call, so that is done once.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        conf = app.conf
        self._outer = conf.changes
        self._live = _dict_of(conf)
        self._seen = dict(self._live)
        self.bulk = bool(conf.get("batch_bulk", True))
        self.is_eager = bool(conf.task_always_eager)
        self.most_queued = most_queued(app)
        self.is_plain = not (conf.task_always_eager or conf.task_send_sent_event)
        self.inherits_priority = conf.task_inherit_parent_priority
        self.has_headers = conf.task_protocol == _WITH_HEADERS
        #: Whether its times are UTC, told by Celery's own clock.
        self.is_utc = app.uses_utc_timezone() and getattr(app.now, "__func__", None) is Celery.now
        self.repr_levels = conf.task_repr_maxlevels
        self.args_limit = app.amqp.argsrepr_maxsize
        self.kwargs_limit = app.amqp.kwargsrepr_maxsize

    def hold(self, conf: Any) -> bool:
        """
        Return whether no setting has changed since.

        Args:
            conf: The app's settings.
        """
        return conf.changes is self._outer and self._live == self._seen


def _dict_of(conf: Any) -> Any:
    """Return the dict in which an app's settings are changed, within its wrappers."""
    changes = conf.changes
    while type(changes) is not dict:
        inner = getattr(changes, "data", None)
        if inner is None:
            return changes
        changes = getattr(inner, "changes", inner)
    return changes
