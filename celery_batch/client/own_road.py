"""
Celery's own road, with another last step where many calls are written together.

Whatever listens to signals, wraps a method or gives an option of its own finds
everything as ever; only the write comes after all of it.
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
        if gathering is None:
            return apply(**options)
        is_canvas = gathering.app is not None
        ways = _OTHER_WAYS - {"producer"} if is_canvas else _OTHER_WAYS
        if not ways.isdisjoint(options):
            return self._singly(partial(apply, **options), gathering)
        if gathering.burst is not None:
            return gathering.burst.send(apply, options)
        with self._app.producer_or_acquire(options.get("producer")) as producer:
            connection = producer.connection
            is_redis = connection.transport.driver_type == "redis"
            if is_redis:
                letters: list[Letter] = []
                writer = _Writer(producer, letters)
                result = apply(**{**options, "producer": writer})
            confirms = not is_canvas and _confirms(connection)
        # With no producer in hand: whoever writes needs one, and there may be no other.
        if is_redis and letters:
            gathering.add(letters[0], result, self._outbox)
        elif is_redis:
            gathering.sent.append(result)
        elif confirms:
            gathering.burst = ConfirmedBurst(self._app, gathering)
            result = gathering.burst.send(apply, options)
        else:
            result = self._singly(partial(apply, **options), gathering)
        return result

    def _singly(self, apply: Callable[[], Any], gathering: Gathering) -> Any:
        gathering.flush()  # first come, first served
        gathering.close()
        result = apply()
        gathering.sent.append(result)
        return result


def _confirms(connection: Any) -> bool:
    is_amqp = connection.transport.driver_type == "amqp"
    return bool(is_amqp and connection.transport_options.get("confirm_publish"))


class _Writer(MessageMaker):
    """
    A producer whose messages to Redis are written with others, later.

    Args:
        producer: Celery's.
        letters: Where they are left.
    """

    def __init__(self, producer: Any, letters: list[Letter]) -> None:
        super().__init__(producer.channel, auto_declare=False)
        self.serializer, self._letters = producer.serializer, letters

    def take(self, key: str, message: dict[str, Any]) -> None:
        self._letters.append(Letter(key, dumps(message)))
