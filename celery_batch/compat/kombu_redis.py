"""Uses of private parts of kombu's Redis transport."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from celery.utils.functional import noop
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, ResponseError

from celery_batch.compat.kombu import open_channels
from celery_batch.compat.redis import is_full, is_read_only

__all__ = ["declare_while_full", "refuse_replicas"]

_READ_ONLY = (
    "this Redis is a read-only replica, so it takes no messages: name the one that it follows"
)


def refuse_replicas(connection: Any) -> None:
    """Have a connection take a read-only replica for a Redis that is not reached yet."""
    establish = connection._establish_connection

    def establish_writable() -> Any:
        established = establish()
        try:
            if connection.transport.driver_type == "redis":
                for channel in list(open_channels(connection)):
                    _require_writable(channel)
        except BaseException:
            connection.transport.close_connection(established)
            raise
        return established

    connection._establish_connection = establish_writable


def _require_writable(channel: Any) -> None:
    with channel.conn_or_acquire() as client, suppress(ResponseError):
        try:
            client.zrem(channel.unacked_index_key, "")  # which changes nothing
        except ReadOnlyError as error:
            raise RedisConnectionError(_READ_ONLY) from error


def declare_while_full(
    connection: Any, on_refused: Callable[[Callable[[], object]], object]
) -> None:
    """Have a connection declare queues on a full Redis; pass on what binds a refused one later."""
    # A full Redis refuses all commands within a transaction, and kombu declares in transactions.
    transport, create = connection.transport, connection.transport.create_channel

    def create_channel(owner: Any) -> Any:
        channel = create(owner)
        _declare_while_full(channel, on_refused)
        return channel

    transport.create_channel = create_channel
    for channel in open_channels(connection):
        _declare_while_full(channel, on_refused)


def _declare_while_full(channel: Any, on_refused: Callable[[Callable[[], object]], object]) -> None:
    is_kombus = type(channel)._size.__module__ == "kombu.transport.redis"
    if is_kombus and "queue_bind" not in vars(channel):
        channel._size = partial(_count_messages, channel)
        channel.queue_bind = partial(_bind_while_full, channel, channel.queue_bind, on_refused)
        refresh = getattr(channel, "maybe_refresh_binding_expiry", None)  # since kombu 5.7
        if refresh is not None:
            channel.maybe_refresh_binding_expiry = partial(_unless_full, channel, refresh)


def _unless_full(channel: Any, call: Callable[[], object]) -> None:
    """Call what kombu calls again each second; it logs a traceback each time that Redis refuses."""
    try:
        call()
    except channel.ResponseError as error:
        if not (is_full(error) or is_read_only(error)):
            raise


def _count_messages(channel: Any, queue: str) -> int:
    """Return how many messages wait in a queue, as kombu does, but without a transaction."""
    with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
        for step in channel.priority_steps:
            pipe.llen(channel._q_for_pri(queue, step))
        return sum(pipe.execute())


def _bind_while_full(
    channel: Any,
    bind: Callable[..., None],
    on_refused: Callable[[Callable[[], object]], object],
    queue: str,
    exchange: str | None = None,
    routing_key: str = "",
    arguments: Any = None,
    **options: Any,
) -> None:
    """Bind a queue as kombu does; a full Redis may refuse, and not all need a binding at once."""
    try:
        bind(queue, exchange, routing_key, arguments, **options)
    except channel.ResponseError as error:
        if not is_full(error):
            raise
    else:
        return
    exchange = exchange or "amq.direct"

    def bind_again() -> None:
        with suppress(channel.connection_errors):  # that the event loop will have as well
            if queue in channel.active_queues:
                channel.queue_bind(queue, exchange, routing_key, arguments, **options)

    kind = channel.typeof(exchange)
    place = kind.prepare_bind(queue, exchange, routing_key, arguments)
    # Messages of a fanout exchange need no binding; others may find one that is there already.
    if kind.type == "fanout" or tuple(each or "" for each in place) in channel.get_table(exchange):
        on_refused(noop)
        return
    channel.state.binding_delete(queue, exchange, routing_key)
    on_refused(bind_again)
