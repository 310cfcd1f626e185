"""Uses of kombu's private parts."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter, methodcaller
from traceback import walk_tb
from typing import Any
from weakref import WeakSet, finalize

from celery.app.amqp import AMQP
from celery.app.base import Celery, PendingConfiguration
from celery.app.control import Control
from celery.backends.base import Backend
from celery.result import ResultBase
from celery.utils.time import timezone
from kombu.connection import Connection
from kombu.serialization import registry
from kombu.transport.virtual import Channel, QoS, Transport
from kombu.utils import json
from kombu.utils.objects import cached_property

__all__ = [
    "BlockingPop",
    "Unacknowledged",
    "ask_nodes",
    "complete_for_list",
    "consume_again",
    "decode_again",
    "decoded_body",
    "decoders",
    "decodes_json",
    "drop_raw_message",
    "encodes_json",
    "is_of_closed_channel",
    "library_errors",
    "lists_of_message",
    "missing_for_acks",
    "missing_for_fetch",
    "open_channels",
    "queue_expires",
    "queue_size",
    "raw_message",
    "redis_list",
    "renew_property_locks",
    "returns_here",
    "set_decoded_body",
    "wake_for_callbacks",
    "wrap_delivery",
]

logger = logging.getLogger(__name__)

#: What kombu's serializers are, those that the application registers among them.
_encoders: dict[str, Any] = getattr(registry, "_encoders", {})
decoders: dict[str, Any] = getattr(registry, "_decoders", {})

#: Returns what a message's body has been decoded to, None until then.  This and the next two are
#: called for each message of a worker, and faster than Python functions.
decoded_body: Callable[[Any], Any] = attrgetter("_decoded_cache")

#: Returns what a message's body is decoded to, without a look at what it has been decoded to.
decode_again: Callable[[Any], Any] = methodcaller("_decode")

#: Returns a message in the form in which it came.
raw_message: Callable[[Any], Any] = attrgetter("_raw")

#: Classes whose cached properties we read, with their subclasses.  Kombu locks such a property
#: each time it is read, for all objects of the class together; an app's settings are loaded
#: within such a lock, and each store or read of a result asks for some of the backend's.
_CLASSES = (
    AMQP,
    Backend,
    Celery,
    Channel,
    Connection,
    Control,
    PendingConfiguration,
    QoS,
    ResultBase,
    type(timezone),
)

#: What `wake_for_callbacks` needs of kombu's event loop.
_HUB = ("_ready", "add_reader", "call_soon", "fire_timers", "on_tick", "readers", "timer")

#: What it has besides since 5.7.
_WAKER = "_waker"

#: Event loops that run callbacks at once.
_woken: WeakSet[Any] = WeakSet()

#: What the bulk path needs of kombu's Redis channel and its QoS that their objects alone have.
_FETCH_CHANNEL = ("_queue_cycle", "handlers")
_ACKS_QOS = ("_delivered", "_dirty", "_on_collect", "_quick_ack")


def missing_for_acks(channel: Any) -> str:
    """Return what a Redis channel of kombu's lacks for acknowledgements in bulk, as words."""
    if not channel.ack_emulation:
        return "kombu's Redis channel acknowledges nothing"
    return _missing(channel.qos, "QoS", _ACKS_QOS)


def missing_for_fetch(channel: Any) -> str:
    """Return what a Redis channel of kombu's lacks for reading in bulk, as words."""
    return _missing(channel, "Channel", _FETCH_CHANNEL)


def _missing(found: Any, called: str, names: Iterable[str]) -> str:
    missing = [name for name in names if not hasattr(found, name)]
    return f"kombu's {called} has no {', '.join(missing)}" if missing else ""


def is_of_closed_channel(error: AttributeError) -> bool:
    """Return whether kombu published on a channel that it had closed itself: it sent nothing."""
    # Kombu connects again where a declaration fails, and publishes on the channel from before.
    *_, (frame, _) = walk_tb(error.__traceback__)
    return error.obj is None and str(frame.f_globals["__name__"]).startswith("kombu.transport.")


class Unacknowledged:
    """The messages that count against the prefetch of a Redis channel of kombu's."""

    def __init__(self, qos: Any) -> None:
        self._qos = qos
        #: All by their delivery tags, and the tags of those that kombu has yet to leave out.
        self.delivered, self.done = qos._delivered, qos._dirty
        #: Frees the place of the message with a delivery tag.
        self.free = qos._quick_ack

    def __contains__(self, tag: str) -> bool:
        return tag in self.delivered and tag not in self.done

    def tags(self) -> set[str]:
        """Return the delivery tags of those that are not acknowledged."""
        return {tag for tag in self.delivered if tag not in self.done}

    def forget(self) -> None:
        """Have kombu put none back: its last try, at the exit, would keep them alive until then."""
        self._qos._on_collect.cancel()
        self.delivered.clear()
        self.delivered.restored = True


class BlockingPop:
    """The blocking pop of a Redis channel of kombu's, in whose place another command is sent."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        #: Gives a message to the consumers of its queue: not the method that may replace this one
        #: in the transport, which would validate the message again.
        self.deliver = partial(Transport._deliver, channel.connection)

    def replace(self, send: Callable[..., None], read: Callable[..., bool]) -> None:
        """Send another command, if the event loop's next pass may read its reply, and read that."""
        channel = self._channel
        channel._brpop_start = send
        channel._brpop_read = channel.handlers["BRPOP"] = read

    def note_sent(self, at: float) -> None:
        """Have the event loop wait for the reply to a command that is about to be sent."""
        self._channel._in_poll = self._channel.client.connection
        self._channel._brpop_sent_at = at

    def note_read(self) -> None:
        """Have the channel send again, and log in again before if its password has changed."""
        self._channel._in_poll = None
        log_in = getattr(self._channel, "_flush_brpop_reauth", None)  # since kombu 5.7
        if log_in is not None:
            log_in()

    @property
    def is_closing(self) -> bool:
        """Whether the channel is about to be closed."""
        return bool(self._channel._closing)

    def queues(self) -> list[str]:
        """Return the queues in the order in which it is their turn."""
        channel = self._channel
        return channel._queue_cycle.consume(len(channel.active_queues))  # type: ignore[no-any-return]

    def rotate(self, queue: str) -> None:
        """Make a queue that had its turn the last one."""
        self._channel._queue_cycle.rotate(queue)


def queue_expires(channel: Any, queue: str) -> bool:
    """Return whether a Redis channel deletes a queue that is not used; none does before 5.7."""
    return queue in getattr(channel, "_expires", ())


def decodes_json() -> bool:
    """Return whether messages in JSON are decoded by kombu's own function."""
    return decoders.get("application/json") is json.loads


def encodes_json(serializer: str) -> bool:
    """Return whether a serializer is JSON, and kombu's own function encodes it."""
    known = _encoders.get(serializer)
    return serializer == "json" and known is not None and known.encoder is json.dumps


def library_errors(connection: Any) -> Any:
    """Return a context in which a connection's errors become kombu's, as Celery does it."""
    return connection._reraise_as_library_errors()


def open_channels(connection: Any) -> Iterable[Any]:
    """Return the Redis channels of a connection whose events a loop reads."""
    return connection.transport.cycle._channels  # type: ignore[no-any-return]


def drop_raw_message(message: Any) -> None:
    """Forget the form in which a message came, which is needed only until it is recorded."""
    message._raw = None


def set_decoded_body(message: Any, decoded: Any) -> None:
    """Set what a message's body has been decoded to."""
    message._decoded_cache = decoded


def wrap_delivery(transport: Any, wrap: Callable[[Callable[[Any, str], None]], Any]) -> None:
    """Replace what gives the messages of a transport to their consumers."""
    transport._deliver = wrap(type(transport)._deliver.__get__(transport))


def queue_size(channel: Any, queue: str) -> int:
    """Return how many messages wait in a queue, in the lists of all its priorities."""
    return int(channel._size(queue))


def redis_list(channel: Any, queue: str, step: int) -> str:
    """Return the list of a queue's messages of one priority step, key prefix included."""
    return str(channel.global_keyprefix + channel._q_for_pri(queue, step))


def lists_of_message(
    channel: Any, message: dict[str, Any], exchange: Any, routing_key: Any
) -> Iterator[str]:
    """Yield the Redis lists to which a message goes, key prefix included."""
    priority = channel._get_message_priority(message, reverse=False)
    for queue in channel._lookup(exchange, routing_key):
        yield redis_list(channel, queue, priority)


def complete_for_list(channel: Any, message: dict[str, Any], exchange: Any, queue: str) -> str:
    """Complete a message as kombu does before a push to a queue, and return the Redis list."""
    channel._inplace_augment_message(message, exchange, queue)
    priority = channel._get_message_priority(message, reverse=False)
    return str(channel.global_keyprefix + channel._q_for_pri(queue, priority))


def renew_property_locks() -> None:
    """Give every cached property of Celery's apps and backends a new lock, after a fork."""
    # One that a thread of the parent held at the fork would stay locked for ever.
    for each in set(_with_subclasses(_CLASSES)):
        for found in list(vars(each).values()):
            if isinstance(found, cached_property):
                found.lock = threading.RLock()


def returns_here(consumer: Any, exchange: Any, routing_key: Any, consumer_tag: Any) -> bool:
    """Return whether a kombu consumer would receive a message again after its rejection."""
    channel = consumer.channel
    if hasattr(channel, "_lookup"):  # kombu's own exchanges
        queues = channel._lookup(exchange, routing_key)
        return any(map(consumer.consuming_from, queues))
    return consumer_tag in consumer._active_tags.values()


def consume_again(consumer: Any) -> None:
    """Have the broker start a new consumer for each queue of a kombu consumer."""
    tags = dict(consumer._active_tags)  # kombu knows one of each queue
    consumer._active_tags.clear()
    consumer.consume()
    # Only now: a queue that deletes itself does so with its last consumer.
    for tag in tags.values():
        consumer.channel.basic_cancel(tag)


def _with_subclasses(classes: Iterable[type]) -> Iterator[type]:
    for each in classes:
        yield each
        yield from _with_subclasses(type.__subclasses__(each))


def wake_for_callbacks(hub: Any) -> None:
    """Have an event loop run at once what any thread gives to `call_soon`."""
    # Kombu's loop runs callbacks, then waits for events: what a callback or a timer adds would wait
    # for seconds on an idle worker.  For other threads kombu itself wakes the loop since 5.7.
    if hub in _woken:
        return
    missing = [name for name in _HUB if not hasattr(hub, name)]
    if missing:
        logger.warning("this kombu has no %s: callbacks may be a second late", ", ".join(missing))
        return
    hub.on_tick.add(_LoopWaker(hub).on_tick)
    _fire_timers_on_time(hub)
    _woken.add(hub)


class _LoopWaker:
    """Wakes an event loop, whose `call_soon` is wrapped if it wakes the loop for no thread."""

    def __init__(self, hub: Any) -> None:
        self._hub = hub
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
            finalize(hub, os.close, end)
        self._lock = threading.RLock()  # a signal handler may call on top of us
        self._is_pending = False
        self._thread: int | None = None
        self._own = hub.call_soon
        if not hasattr(hub, _WAKER):
            hub.call_soon = self._call_soon

    def _call_soon(self, callback: Any, *args: Any) -> Any:
        added = self._own(callback, *args)
        # The loop's own thread looks for callbacks before it waits for events.
        if threading.get_ident() != self._thread:
            self._wake()
        return added

    def on_tick(self) -> None:
        """Prepare for the wait for events; a loop that is reset forgets its descriptors."""
        self._thread = threading.get_ident()
        if self._reader not in self._hub.readers:
            self._hub.add_reader(self._reader, self._drain)
        if self._hub._ready:
            self._wake()

    def _wake(self) -> None:
        with self._lock:
            wake, self._is_pending = not self._is_pending, True
        if wake:
            os.write(self._writer, b"\0")

    def _drain(self) -> None:
        # In this order: what is written after the flag is cleared must not be read here.
        with suppress(BlockingIOError):
            os.read(self._reader, 4096)
        with self._lock:
            self._is_pending = False


def _fire_timers_on_time(hub: Any) -> None:
    """Have a loop not sleep for a second after ten timers, even if one is due."""
    fire_timers = hub.fire_timers

    def fire_timers_on_time(*args: Any, **options: Any) -> float:
        delay = float(fire_timers(*args, **options))
        queue = hub.timer._queue
        return min(delay, max(queue[0].eta - time.monotonic(), 0.0)) if queue else delay

    hub.fire_timers = fire_timers_on_time


class _AllReplied(Exception):
    """Ends the wait for replies."""


def ask_nodes(
    mailbox: Any,
    nodes: Sequence[str] | None,
    command: str,
    arguments: Mapping[str, Any] | None,
    seconds: float,
) -> dict[str, Any]:
    """Send a command; return the replies by node, once all replied or after seconds without one."""
    # Kombu's own `call` counts replies, with those that come too late from an earlier command.
    replies: dict[str, Any] = {}

    def note(reply: dict[str, Any]) -> None:
        replies.update(reply)
        if nodes and replies.keys() >= {*nodes}:
            raise _AllReplied

    with suppress(_AllReplied):
        # As Celery's `Control.broadcast` calls it; no limit of 0 is replaced by one.
        mailbox._broadcast(
            command, arguments, nodes, reply=True, timeout=seconds, limit=0, callback=note
        )
    return replies
