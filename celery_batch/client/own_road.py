"""
Celery's own road, with another last step where many messages can be written at once.

Whatever listens to signals, wraps a method or gives an option of its own finds
everything as ever; only the write is shared with others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kombu.utils.json import dumps

from celery_batch.client.amqp_road import ConfirmedBurst
from celery_batch.client.gathering import Gathering
from celery_batch.client.outbox import Letter, Outbox
from celery_batch.client.template import MessageMaker

__all__ = ["OwnRoad"]

#: Options that say how or where a message is published.
_OTHER_WAYS = frozenset(("connection", "publisher", "producer", "retry", "retry_policy"))


class OwnRoad:
    """
    Sends calls as Celery does.

    Args:
        app: The Celery app.
        outbox: Writes messages to Redis.
    """

    def __init__(self, app: Any, outbox: Outbox) -> None:
        self._app = app
        self._outbox = outbox

    def send(self, apply: Callable[..., Any], options: Any, gathering: Gathering | None) -> Any:
        """
        Send one call.

        Args:
            apply: Celery's `apply_async` with the call's arguments.
            options: The call's options.
            gathering: Where messages are kept, if they are.
        """
        if gathering is None or gathering.app is not self._app:
            ways = _OTHER_WAYS
        else:
            ways = _OTHER_WAYS - {"producer"}  # Celery's own: this is a group
        if not ways.isdisjoint(options):
            return self._singly(partial(apply, **options), gathering)
        if gathering is not None and gathering.burst is not None:
            return gathering.burst.send(apply, options)
        with self._app.producer_or_acquire(options.get("producer")) as producer:
            connection = producer.connection
            if connection.transport.driver_type == "redis":
                return self._by_letter(producer, apply, options, gathering)
            if gathering is None or gathering.app is not None or not _confirms(connection):
                return self._singly(partial(apply, **{**options, "producer": producer}), gathering)
        gathering.burst = ConfirmedBurst(self._app, gathering)
        return gathering.burst.send(apply, options)

    def _singly(self, apply: Callable[[], Any], gathering: Gathering | None) -> Any:
        if gathering is None:
            return apply()
        gathering.flush()  # first come, first served
        result = apply()
        gathering.sent.append(result)
        return result

    def _by_letter(
        self, producer: Any, apply: Callable[..., Any], options: Any, gathering: Gathering | None
    ) -> Any:
        if gathering is None:
            return apply(**{**options, "producer": _Writer(producer, self._outbox.send)})
        letters: list[Letter] = []
        result = apply(**{**options, "producer": _Writer(producer, letters.extend)})
        if letters:
            gathering.add(letters[0], result, self._outbox)
        else:
            gathering.sent.append(result)
        return result


def _confirms(connection: Any) -> bool:
    is_amqp = connection.transport.driver_type == "amqp"
    return bool(is_amqp and connection.transport_options.get("confirm_publish"))


class _Writer(MessageMaker):
    """
    A producer whose messages to Redis are written with others.

    Args:
        producer: Celery's.
        send: Takes letters.
    """

    def __init__(self, producer: Any, send: Callable[[list[Letter]], None]) -> None:
        super().__init__(producer.channel, auto_declare=False)
        self.serializer, self._send = producer.serializer, send

    def take(self, key: str, message: dict[str, Any]) -> None:
        self._send([Letter(key, dumps(message))])
