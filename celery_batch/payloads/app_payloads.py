"""Which store an app's payloads lie in, and which values go there."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from numbers import Real
from typing import Any, Self, cast

from celery.backends.redis import RedisBackend
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.exceptions import OperationalError
from kombu.utils.functional import retry_over_time

from celery_batch.config import PayloadSettings, SettingsSnapshot
from celery_batch.errors import InvalidPayload, MessageTooLarge
from celery_batch.payloads.store import PayloadStore, RedisPayloads, StoreError, open_store
from celery_batch.payloads.values import PayloadReference
from celery_batch.processes.per_process import PerProcess

__all__ = ["SERIALIZERS", "AppPayloads", "seconds_until"]

logger = logging.getLogger(__name__)

#: Serializers that carry stored values.
SERIALIZERS = ("json", "batch-msgpack", "pickle")

#: What `retry_over_time` takes of Celery's policies, with what kombu takes for messages where a
#: policy does not say it.
_POLICY = {"max_retries": None, "interval_start": 1, "interval_step": 1, "interval_max": 1}

#: Celery's message protocol that has headers.
_WITH_HEADERS = 2

_REDIS = ("redis://", "rediss://", "redis+socket://")


class AppPayloads(PerProcess):
    """The payloads of one app in this process."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._snapshot = SettingsSnapshot(app.conf)
        self.settings = PayloadSettings.of(app)
        self.store = self._open()
        conf = app.conf
        #: Whether calls of this app can have payloads, with a serializer that carries them.
        self.can_send = (
            self.store is not None
            and conf.task_protocol == _WITH_HEADERS
            and not conf.task_always_eager
        )
        #: Of calls of tasks that name none.
        self.serializer = conf.task_serializer
        #: Whether the store has taken a value of this process before.
        self.is_allowed = False
        self._has_warned = False

    @classmethod
    def of(cls, app: Any) -> Self:
        """Return the app's in this process, a new one where settings have changed."""
        known = super().of(app)
        if known._snapshot.is_current(app.conf):  # noqa: SLF001 (our own)
            return known
        known.drop()
        return super().of(app)

    @property
    def takes_bytes(self) -> bool:
        """Whether `bytes` are stored, too: only where a store was named."""
        return bool(self.settings.store)

    def _open(self) -> PayloadStore | None:
        url = self.settings.store
        if url is False:
            return None
        if isinstance(url, str):
            return open_store(self._app, url)
        if isinstance(self._app.backend, RedisBackend):
            return RedisPayloads(self._app.backend)
        return self._in_broker()

    def _in_broker(self) -> PayloadStore | None:
        """Return a store in the Redis of the broker; None unless its URL says all about it."""
        conf = self._app.conf
        url = conf.broker_write_url or conf.broker_url
        is_redis = isinstance(url, str) and url.startswith(_REDIS) and ";" not in url
        if not is_redis or conf.broker_use_ssl:
            return None
        try:
            return open_store(self._app, url)
        except ValueError:  # it is Celery's for what the URL of a broker need not say
            return None

    def retry_policy(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return how often storing values is tried again, as for the message of the call."""
        conf, retry = self._app.conf, options.get("retry")
        if not (conf.task_publish_retry if retry is None else retry):
            return {"max_retries": 0}
        own = {**(conf.task_publish_retry_policy or {}), **(options.get("retry_policy") or {})}
        return {name: own.get(name, default) for name, default in _POLICY.items()}

    def why_unreadable(self, size: int) -> Exception | None:
        """Return why this process cannot read a payload of so many bytes; None if it can."""
        if self.store is None:
            return InvalidPayload(
                "values are stored beside it, and this process has no payload store: set"
                " batch_payload_store as where they were stored"
            )
        if size > self.settings.most:
            return MessageTooLarge(
                f"the values that are stored beside it have {size} bytes, and"
                f" batch_max_payload_size allows {self.settings.most} here"
            )
        return None

    def read(
        self, reference: PayloadReference, task_id: str, policy: Mapping[str, Any]
    ) -> list[memoryview]:
        """Return the values beside a message or result; raise why they cannot be read."""
        if (why_not := self.why_unreadable(reference.total)) is not None:
            raise why_not
        get = cast("PayloadStore", self.store).get
        what = [reference.key(task_id)], [reference.total]
        try:
            (data,) = retry_over_time(get, StoreError, what, **policy)
        except StoreError as error:
            raise OperationalError(f"The payload store cannot be reached: {error}") from error
        return reference.split(data)

    def warn_once(self, text: str, *args: Any) -> None:
        """Log a warning, the first time."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(text, *args)


def seconds_until(when: Any) -> float:
    """Return the seconds until a call is due or expires; 0 if that is over or unknown."""
    if isinstance(when, Real):
        return max(float(when), 0.0)
    try:
        at = maybe_iso8601(when)
        return max(maybe_make_aware(at).timestamp() - time.time(), 0.0) if at else 0.0
    except (AttributeError, TypeError, ValueError, OverflowError):  # which Celery says
        return 0.0
