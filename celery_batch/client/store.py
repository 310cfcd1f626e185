"""The Redis that results are stored in, reached by connections of the listener's own."""

from __future__ import annotations

# redis imports this one when it makes its first connections; in a process that forks
# just then, the child would wait for ever for an import that nobody finishes.
import secrets  # noqa: F401
from contextlib import suppress
from typing import Any

from celery import states
from celery.backends.redis import RedisBackend, SentinelBackend
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError
from redis.retry import Retry

__all__ = ["ResultStore", "Subscription"]

#: Seconds without an answer after which a connection is given up.
PATIENCE = 5.0

#: Seconds without a message after which we ask whether the other side still lives.
QUIET = 10.0


class ResultStore:
    """
    Where an app's results are stored.

    Args:
        backend: Celery's result backend, on Redis; its settings are used, not its connections.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._client = self.client()

    @staticmethod
    def knows(backend: Any) -> bool:
        """Return whether a backend stores its results as we know it."""
        return type(backend) in (RedisBackend, SentinelBackend)

    @property
    def prefix(self) -> str:
        """What all keys and channels of this app begin with."""
        return str(self._backend._transport_options.get("global_keyprefix", ""))  # noqa: SLF001

    def client(self) -> Any:
        """Return a Redis client that fails soon and does not connect again by itself."""
        params = dict(self._backend.connparams, max_connections=None)
        params["socket_timeout"] = min(params.get("socket_timeout") or PATIENCE, PATIENCE)
        if "path" not in params and not params.get("socket_connect_timeout"):
            params["socket_connect_timeout"] = PATIENCE
        client = self._backend._create_client(**params)  # noqa: SLF001
        client.set_retry(Retry(NoBackoff(), 0))
        return client

    def read(self, task_ids: list[str]) -> list[tuple[str, bytes]]:
        """
        Return tasks with their stored values, empty where there is none.

        Raises:
            RedisError: Redis did not answer.
        """
        key = self._backend.get_key_for_task
        values = self._client.mget([key(task_id) for task_id in task_ids])
        return [(task_id, value or b"") for task_id, value in zip(task_ids, values, strict=True)]

    def is_final(self, value: bytes) -> bool:
        """Return whether a stored value is a task's end."""
        try:
            return self._backend.decode(value)["status"] in states.READY_STATES
        except Exception:  # noqa: BLE001 (it is for those who wait to meet this error)
            return True

    def wake(self, channel: str) -> None:
        """Have whoever hears a channel read a message without replies."""
        with suppress(RedisError):
            self._client.publish(channel, b"")

    def close(self) -> None:
        """Let go of the connections."""
        self._client.connection_pool.disconnect()


class Subscription:
    """
    One channel, heard on a connection of its own.

    Args:
        client: A Redis client that does not connect again by itself.
        channel: Its name.

    Raises:
        RedisError: Redis does not answer, or does not allow it.
    """

    def __init__(self, client: Any, channel: str) -> None:
        self._pubsub = client.pubsub()
        self._asked = False
        self._pubsub.subscribe(channel)
        confirmed = self._pubsub.get_message(timeout=PATIENCE)
        if confirmed is None or confirmed["type"] != "subscribe":
            self.close()
            raise ConnectionError("Redis does not confirm the subscription")

    def read(self) -> bytes | None:
        """
        Wait for a message and return it; None where there was none for a while.

        Raises:
            RedisError: The connection is lost.
            ConnectionError: It is silent: the other side is gone.
        """
        message = self._pubsub.get_message(timeout=PATIENCE if self._asked else QUIET)
        if message is None:
            if self._asked:
                raise ConnectionError("Redis has not answered a ping")
            self._pubsub.ping()
            self._asked = True
            return None
        self._asked = False
        data = message["data"]
        if message["type"] != "message":
            return None
        return data.encode() if isinstance(data, str) else data

    def close(self) -> None:
        """Let go of the connection."""
        self._pubsub.close()


#: What a Redis says that does not let us listen.
FORBIDDEN = (NoPermissionError,)
