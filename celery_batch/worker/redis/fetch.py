"""Fetches many messages in one round trip.

Rule 1: more urgent messages come first, and those of the queue whose turn it is.
Rule 2: what no lane could put to use soon is left for other workers.
Rule 3: while others wait before them, the less urgent have a few places kept, which are
        looked into first.
Rule 4: this is asked in each pass of the event loop: what is the same for all priorities,
        as it is where nobody uses any, is reckoned once.

One script pops as many messages as there is room for, in kombu's order of priorities
and queues, and in the same atomic step writes down who has them, as kombu does and for
the lease: at no moment is a message neither in its queue nor written down.  When there
is nothing to pop, bells tell of the next message.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from queue import Empty
from typing import Any

from celery.utils.functional import noop
from kombu.transport import virtual
from kombu.utils.json import dumps
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from celery_batch.worker.redis.lease import Lease
from celery_batch.worker.redis.restore import Terms
from celery_batch.worker.redis.scripts import script
from celery_batch.worker.redis.wakeup import QueueWakeup
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = [
    "BulkFetch",
    "Lists",
]


class Lists:
    """
    The lists of one channel's queues: one for each step of priority.

    Args:
        channel: Kombu's Redis channel.
        scheduler: Where messages go, and how much more they can put to use.
    """

    def __init__(self, channel: Any, scheduler: Scheduler) -> None:
        self._channel = channel
        self._limits = scheduler.fetch_limits
        self._names: dict[tuple[str, int], str] = {}
        #: The tasks whose messages have been seen in each queue.
        self.seen: defaultdict[str, set[str]] = defaultdict(set)

    def all(self) -> list[str]:
        """Return all of them, key prefix included."""
        channel = self._channel
        places = product(channel.active_queues, channel.priority_steps)
        return [self._name(*place) for place in places]

    def wanted(self, credit: int, most: int) -> tuple[list[str], list[str], int, str]:
        """
        Return the lists to look into, and how many messages of them.

        Args:
            credit: What is left of the prefetch.
            most: Messages of all of them at once.

        Returns:
            The lists in order, the queue of each, how many messages could be put to use, and
            how many at most of each of the first lists, as words.
        """
        channel = self._channel
        steps = channel.priority_steps
        queues = channel._queue_cycle.consume(len(channel.active_queues))  # noqa: SLF001
        rooms = {queue: self._rooms(queue, steps, credit) for queue in queues}
        is_any = any(map(any, rooms.values()))
        guaranteed = (
            {queue: self._guaranteed(queue, steps, credit) for queue in queues} if is_any else {}
        )
        places, numbers = [], []
        for at, step in enumerate(steps):
            for queue in guaranteed:
                if number := guaranteed[queue][at]:
                    places.append((queue, step))
                    numbers.append(str(number))
        for at, step in enumerate(steps):
            for queue in queues:
                if room := rooms[queue][at]:
                    places.append((queue, step))
                    most = min(most, room)
        names = [self._name(*place) for place in places]
        return names, [queue for queue, _ in places], most, " ".join(numbers)

    def _rooms(self, queue: str, steps: Sequence[int], credit: int) -> list[int]:
        """
        Return how many messages of each list are of use now, by what its queue has brought.

        Args:
            queue: Which.
            steps: The smaller, the more urgent; whom they overtake does not keep them out.
            credit: What is left of the prefetch.
        """
        tasks, rooms = self.seen.get(queue), []
        for step, left in zip(steps, self._limits.left(tasks, steps), strict=True):
            behind = self._limits.behind(tasks, step) if tasks and left > credit else 0
            rooms.append(min(left, credit + behind))
        return rooms

    def _guaranteed(self, queue: str, steps: Sequence[int], credit: int) -> list[int]:
        """Return how many messages of each list are to be read before more urgent ones."""
        tasks = self.seen.get(queue)
        guaranteed = self._limits.guaranteed(tasks, steps)
        return guaranteed if tasks else [min(most, credit) for most in guaranteed]

    def _name(self, queue: str, step: int) -> str:
        """Return the list of a queue's messages of one priority, key prefix included."""
        name = self._names.get((queue, step))
        if name is None:
            channel = self._channel
            name = channel.global_keyprefix + channel._q_for_pri(queue, step)  # noqa: SLF001
            self._names[queue, step] = name
        return name


logger = logging.getLogger(__name__)


#: Messages in one pass of the event loop; each costs a twentieth of a millisecond
#: in which no finished batch is noticed and no ready one is sent off.
_SLICE = 64


#: Seconds after which an idle worker looks for itself, as kombu's own BRPOP does; and
#: after which a Redis that refused is asked again.
_LOOK_EVERY = 1.0


class BulkFetch:
    """
    Reads in bulk on one live channel, until the channel is closed.

    Args:
        channel: Kombu's Redis channel, which consumes with acknowledgements.
        hub: Celery's event loop.
        lease: What is read belongs to it.
        scheduler: Where what is read goes, and how much more they can put to use.
        read: Decodes a message; None if it refuses it, and then it calls what it is given
            when the message may be forgotten.
    """

    def __init__(
        self,
        channel: Any,
        hub: Any,
        lease: Lease,
        scheduler: Scheduler,
        read: Callable[[bytes, Callable[[], object]], Any],
    ) -> None:
        self._channel = channel
        self._qos = channel.qos
        self._lease = lease
        self._scheduler = scheduler
        self._decode = read
        self._places: list[str] = []
        self._asked: list[str] = []
        self._asked_at = 0.0
        #: The lists in which nothing was found, until a bell rings.
        self._quiet: frozenset[str] = frozenset()
        self._lists = Lists(channel, scheduler)
        self._is_closed = False
        self._is_asked = False
        self._is_single = False
        self._is_refused = False
        self._written_down: set[str] = set()
        self._wakeup = QueueWakeup(channel, hub, self._wake, self._read_singly)
        self._keep = lease.client.register_script(script("record"))
        self._pop = lease.client.script_load(script("fetch"))
        self._start_one, self._read_one = channel._brpop_start, channel._brpop_read  # noqa: SLF001
        channel._brpop_start = self._ask  # noqa: SLF001
        channel._brpop_read = channel.handlers["BRPOP"] = self._read  # noqa: SLF001
        channel.qos.append = self._append
        self._is_within_prefetch = channel.qos.can_consume
        channel.qos.can_consume = self._may_ask

    def close(self) -> None:
        """Wait for nothing more; an answer that is on its way can still be read."""
        self._is_closed = True
        self._wakeup.close()

    def _wake(self) -> None:
        self._quiet = frozenset()

    def _read_singly(self, error: ResponseError) -> None:
        if not self._is_single:
            self._is_single = True
            self._wakeup.close()
            logger.warning("this Redis knows no BLMOVE (%s): messages are read singly", error)

    def _ask(self, timeout: float | None = None) -> None:
        """Take the place of sending BRPOP: called in each pass in which we may consume."""
        if self._is_single:
            if self._scheduler.fetch_limits.has_capacity():
                self._start_one(timeout)
            return
        if self._is_asked:
            # Kombu has closed the socket on which an answer was due.  What Redis may have
            # handed out is held by this connection's owner, and comes back with its end.
            raise RedisConnectionError("an answer of Redis has been lost")
        now = time.monotonic()
        has_just_asked = now - self._asked_at < _LOOK_EVERY
        if has_just_asked and self._quiet and self._quiet.issuperset(self._lists.all()):
            return
        credit = self._credit()
        lists, self._places, wanted, reserved = self._lists.wanted(credit, _SLICE)
        if not lists or (has_just_asked and self._quiet.issuperset(lists)):
            return
        channel, keys, lease = self._channel, self._lease.keys, self._lease
        self._quiet, self._asked, self._asked_at = frozenset(), lists, now
        connection = channel.client.connection
        channel._in_poll = connection  # noqa: SLF001
        channel._brpop_sent_at = now  # noqa: SLF001
        names = [keys.index, keys.unacked, keys.owner_of, keys.held, keys.owners, keys.alive]
        self._is_asked = True
        connection.send_command(
            *("EVALSHA", self._pop, len(names) + len(lists), *names, *lists),
            *(wanted, keys.owner, lease.description, lease.milliseconds, reserved),
        )

    def _credit(self) -> int:
        """Return how many more messages the prefetch lets us hold."""
        if not self._is_within_prefetch():
            return 0
        credit = self._qos.can_consume_max_estimate()
        return _SLICE if credit is None else max(credit, 1)

    def _may_ask(self) -> bool:
        """Say for kombu whether we may read; in bulk we say so of each list by itself."""
        return bool(not self._is_single or self._is_within_prefetch())

    def _read(self, **options: Any) -> bool:
        """
        Read the answer and deliver what it brings.

        Raises:
            Empty: Nothing was there.
        """
        if not self._is_asked:
            return bool(self._read_one(**options))
        found = self._answer()
        if not found:
            self._quiet = frozenset(self._asked)
            if not self._channel._closing:  # noqa: SLF001
                self._wakeup.arm(self._asked)
            raise Empty
        self._channel._queue_cycle.rotate(found[0][0])  # noqa: SLF001
        with self._scheduler.adding_many():
            self._deliver(found)
        return True

    def _answer(self) -> list[tuple[str, str, bytes]]:
        """Return queue, delivery tag (empty if not written down) and message of each."""
        channel = self._channel
        try:
            found = channel.client.parse_response(channel.client.connection, "EVALSHA")
        except channel.connection_errors:
            channel.client.connection.disconnect()
            raise
        except ResponseError as error:
            self._quiet = frozenset(self._asked)  # not again in this very pass
            self._explain(error)
            raise Empty from error
        finally:
            self._is_asked = False
            channel._in_poll = None  # noqa: SLF001
            channel._flush_brpop_reauth()  # noqa: SLF001
        self._is_refused = False
        return self._unpack(*found) if found else []

    def _unpack(self, about: bytes, texts: bytes) -> list[tuple[str, str, bytes]]:
        numbers, end, found = map(int, about.split()), 0, []
        for at, in_tag, in_message in zip(numbers, numbers, numbers, strict=True):
            start, end = end + in_tag, end + in_tag + in_message
            tag = texts[start - in_tag : start].decode()
            found.append((self._places[at - 1], tag, texts[start:end]))
        return found

    def _explain(self, error: ResponseError) -> None:
        if isinstance(error, NoScriptError):
            self._pop = self._lease.client.script_load(script("fetch"))
        elif isinstance(error, NoPermissionError):
            self._read_singly(error)
        elif not self._is_refused:
            self._is_refused = True
            logger.warning("Redis refuses to hand out messages (%s): asked again soon", error)

    def _deliver(self, found: list[tuple[str, str, bytes]]) -> None:
        found = self._without_late_ones(found)
        self._written_down.update(tag for _, tag, _ in found if tag)
        while found:
            queue, tag, message = found.pop(0)
            try:
                envelope = self._decode(message, partial(self._forget, tag) if tag else noop)
                if envelope is not None:
                    self._note(queue, envelope.get("headers"))
                    # Checked already: past the gate that stands before `_deliver`.
                    virtual.Transport._deliver(self._channel.connection, envelope, queue)  # noqa: SLF001
                elif tag:
                    self._written_down.discard(tag)
            except Exception:
                # What is left has been popped and met nobody: it goes back at once.
                for queue, tag, message in found:
                    if tag:
                        self._qos.restore_by_tag(tag)
                    else:
                        self._channel.client.rpush(queue, message)
                raise

    def _without_late_ones(
        self, found: list[tuple[str, str, bytes]]
    ) -> list[tuple[str, str, bytes]]:
        """Give back at once what comes from a queue that is no longer consumed."""
        active = self._channel.active_queues
        late = [tag for queue, tag, _ in found if tag and queue not in active]
        if not late:
            return found
        flags = dict.fromkeys(reversed(late), "0")  # whose message is put there last goes first
        self._lease.restorer.give_back(flags, Terms(self._lease.keys.owner))
        return [each for each in found if each[1] not in flags]

    def _note(self, queue: str, headers: Any) -> None:
        task = (headers or {}).get("task")
        if isinstance(task, str) and task in self._scheduler:
            self._lists.seen[queue].add(task)

    def _forget(self, tag: str) -> None:
        """Cross out what was written down and refused."""
        if self._is_closed:
            return  # it has gone back with its connection, or will
        virtual.QoS.append(self._qos, None, tag)  # so that the books of the prefetch are right
        self._qos.ack(tag)

    def _append(self, message: Any, tag: str) -> None:
        if tag in self._written_down:
            self._written_down.discard(tag)
        else:
            info, keys = message.delivery_info, self._lease.keys
            entry = dumps([message._raw, info["exchange"], info["routing_key"]])  # noqa: SLF001
            self._keep(
                keys=[keys.index, keys.unacked, keys.owner_of, keys.held, keys.owners],
                args=[keys.owner, tag, entry],
            )
        virtual.QoS.append(self._qos, message, tag)
