"""Where kombu lets messages in, and the gate can stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amqp import serialization
from kombu.utils.json import dumps

from celery_batch.worker.wellformed import Malformed, check_envelope

__all__ = ["Deliveries", "FirstReads", "bear_unreadable_properties"]

#: The content type of an AMQP message whose properties could not be read: nobody accepts it.
UNREADABLE = "application/x-unreadable-properties"


class Deliveries:
    """
    Checks what a transport hands to its consumers: tasks, remote control, gossip.

    Args:
        channel: Of the transport.
        refuse: Called with a message and what is wrong with it.
    """

    def __init__(self, channel: Any, refuse: Callable[[bytes, str], None]) -> None:
        self._codecs = channel.codecs
        self._refuse = refuse
        transport = channel.connection
        self._deliver = type(transport)._deliver.__get__(transport)  # noqa: SLF001
        transport._deliver = self.deliver  # noqa: SLF001

    def deliver(self, envelope: Any, queue: str) -> None:
        """Hand on what is a message."""
        try:
            check_envelope(envelope, self._codecs)
        except Malformed as error:
            self._refuse(_encode(envelope), str(error))
            return
        self._deliver(envelope, queue)


class FirstReads:
    """
    Checks what kombu's blocking pop brings, before kombu decodes it.

    Args:
        client: The Redis client that pops.
        read: Decodes a message; None if it refuses it.
    """

    def __init__(self, client: Any, read: Callable[[bytes], Any]) -> None:
        self._parse = client.parse_response
        self._read = read
        client.parse_response = self.parse_response

    def parse_response(self, connection: Any, command_name: str, **options: Any) -> Any:
        """Return the answer; None, which says that nothing came, if its message is refused."""
        found = self._parse(connection, command_name, **options)
        if command_name == "BRPOP" and found and self._read(found[1]) is None:
            return None
        return found


def bear_unreadable_properties() -> None:
    """
    Let py-amqp read on after properties that it cannot decode, in this process.

    It would raise in the middle of its connection: on tables nested deeply, on names
    that are no UTF-8.  The broker would deliver such a message again, to the next worker.
    """
    for class_id, decode in serialization.PROPERTY_CLASSES.items():
        if not isinstance(decode, _Bearing):
            serialization.PROPERTY_CLASSES[class_id] = _Bearing(decode)


class _Bearing:
    """A decoder of properties that answers whatever comes."""

    def __init__(self, decode: Callable[[Any, int], tuple[dict[str, Any], int]]) -> None:
        self._decode = decode

    def __call__(self, buf: Any, offset: int) -> tuple[dict[str, Any], int]:
        try:
            return self._decode(buf, offset)
        except Exception:  # noqa: BLE001 (whatever a decoder does with garbage)
            return {"content_type": UNREADABLE, "application_headers": {}}, offset


def _encode(envelope: Any) -> bytes:
    try:
        return str(dumps(envelope)).encode()
    except (TypeError, ValueError, RecursionError):
        return b""
