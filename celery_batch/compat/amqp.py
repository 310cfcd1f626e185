"""Uses of py-amqp's private parts; reading frames has a module of its own."""

from __future__ import annotations

from typing import Any

from vine import promise

__all__ = ["expect_method", "publish_without_confirms", "serialized_properties"]


def serialized_properties(message: Any) -> bytes:
    """Return a message's properties as they go over the wire."""
    return bytes(message._serialize_properties())  # noqa: SLF001


def expect_method(channel: Any, method: Any) -> Any:
    """Return a promise that is ready when a method has come on a channel, as py-amqp's `wait`."""
    answered = channel._pending[method] = promise()  # noqa: SLF001
    return answered


def publish_without_confirms(channel: Any) -> None:
    """Have a channel that selects confirms publish without waiting for each."""
    channel.basic_publish = channel._basic_publish  # noqa: SLF001
