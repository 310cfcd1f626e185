"""Uses of py-amqp's private parts."""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack_from
from typing import Any

from amqp import RecoverableConnectionError, spec
from amqp.transport import TCPTransport
from vine import promise

__all__ = [
    "FrameBuffer",
    "end_waits_while_blocked",
    "expect_method",
    "missing_for_frames",
    "publish_without_confirms",
    "return_not_run",
    "serialized_properties",
]

#: Bytes that are read at once; what is left of them is copied for each frame.
_READ = 1 << 14

#: Bytes before and after the payload of a frame, and the last byte.
_BEFORE, _AFTER, _END = 7, 1, 0xCE

#: What reading frames needs of py-amqp's connection and of its transport.
_CONNECTION, _TRANSPORT = ("drain_events", "on_inbound_frame"), ("_read_buffer", "_quick_recv")


def missing_for_frames(connection: Any) -> str:
    """Return why a `FrameBuffer` cannot read from a connection of py-amqp's, as words."""
    missing = [name for name in _CONNECTION if not hasattr(connection, name)]
    transport = getattr(connection, "transport", None)
    if type(transport) is not TCPTransport:
        return "the connection uses TLS"  # which has its own buffers
    missing += [name for name in _TRANSPORT if not hasattr(transport, name)]
    return f"py-amqp's connection has no {', '.join(missing)}" if missing else ""


class FrameBuffer:
    """What has arrived on a connection of py-amqp's, in its own buffer, from which it goes on."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def next_frame(self) -> tuple[int, int, bytes] | None:
        """Take a frame from the buffer; None if there is no complete one."""
        buffer = self._transport._read_buffer
        if len(buffer) < _BEFORE + _AFTER:
            return None
        kind, channel, size = unpack_from(">BHI", buffer)
        end = _BEFORE + size + _AFTER
        if len(buffer) < end:
            return None
        if buffer[end - 1] != _END:
            return self._transport.read_frame()  # type: ignore[no-any-return] # raises an error
        self._transport._read_buffer = buffer[end:]
        return kind, channel, buffer[_BEFORE : end - _AFTER]

    def receive(self) -> bool:
        """Receive more, if more has arrived; an OSError if the connection is lost."""
        transport = self._transport
        try:
            with transport.having_timeout(0):
                data = transport._quick_recv(_READ)
        except (TimeoutError, BlockingIOError, InterruptedError):
            return False
        except OSError:
            transport.connected = False
            raise
        if not data:
            transport.connected = False
            raise OSError("Server unexpectedly closed connection")
        transport._read_buffer += data
        return True


def serialized_properties(message: Any) -> bytes:
    """Return a message's properties as they go over the wire."""
    return bytes(message._serialize_properties())


def expect_method(channel: Any, method: Any) -> Any:
    """Return a promise that is ready when a method has come on a channel, as py-amqp's `wait`."""
    answered = channel._pending[method] = promise()
    return answered


def publish_without_confirms(channel: Any) -> None:
    """Have a channel that selects confirms publish without waiting for each."""
    channel.basic_publish = channel._basic_publish


def return_not_run(channel: Any, delivery_tag: int) -> None:
    """Return a message that was not processed: RabbitMQ counts no failure of it, from 4.3 on."""
    # A rejection, and a channel that is closed, count against a quorum queue's delivery limit.
    properties = channel.connection.server_properties or {}
    if properties.get("capabilities", {}).get("basic.nack"):
        channel.send_method(spec.Basic.Nack, "Lbb", (delivery_tag, False, True))
    else:
        channel.basic_reject(delivery_tag, requeue=True)


def end_waits_while_blocked(connection: Any, is_ending: Callable[[], bool]) -> None:
    """Have a connection of a worker that ends await no reply while RabbitMQ reads nothing of it."""
    # In an alarm RabbitMQ reads nothing from connections that have published, so it does not even
    # reply to their end.  When the alarm is over it reads what was sent before.
    drain_events, blocked = connection.drain_events, False
    users_blocked, users_unblocked = connection.on_blocked, connection.on_unblocked  # or None

    def raise_if_blocked() -> None:
        if blocked and is_ending():
            raise RecoverableConnectionError("RabbitMQ is in an alarm, and does not reply")

    def on_blocked(reason: str) -> None:
        nonlocal blocked
        blocked = True
        if users_blocked is not None:
            users_blocked(reason)
        raise_if_blocked()

    def on_unblocked() -> None:
        nonlocal blocked
        blocked = False
        if users_unblocked is not None:
            users_unblocked()

    def drain_unless_blocked(timeout: float | None = None) -> Any:
        if timeout is None:
            raise_if_blocked()
        return drain_events(timeout=timeout)

    connection.on_blocked, connection.on_unblocked = on_blocked, on_unblocked
    connection.drain_events = drain_unless_blocked
