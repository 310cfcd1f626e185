"""Where letters go, by the broker that they are for."""

from __future__ import annotations

from typing import Any

from celery_batch.client.amqp_letters import AmqpLetters
from celery_batch.client.amqp_template import AmqpLetter
from celery_batch.client.outbox import Letter
from celery_batch.client.redis_road import RedisRoad

__all__ = ["ShortRoad"]


class ShortRoad:
    """
    Writes letters to one app's broker.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._redis = RedisRoad(app)
        self._amqp = AmqpLetters(app)

    def write(self, letters: list[Letter], producer: Any = None) -> None:
        """
        Send the letters, and mark those that are sent.

        Args:
            letters: To be sent.
            producer: Celery's, to send them with; one of the app's unless given.

        Raises:
            OperationalError: The broker could not be reached, or refused them.
        """
        to_rabbitmq = [letter for letter in letters if isinstance(letter, AmqpLetter)]
        if to_rabbitmq:
            self._amqp.write(to_rabbitmq, producer)
        if len(to_rabbitmq) < len(letters):
            to_redis = [each for each in letters if not isinstance(each, AmqpLetter)]
            self._redis.write(to_redis, producer)
