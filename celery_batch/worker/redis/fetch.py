"""
Fetches many messages in one round trip.

Rule 1: more urgent messages come first, and among equals those of the queue whose turn it is.
Rule 2: messages that no task queue can use soon are left in the broker for other workers.
Rule 3: while more urgent messages wait, a few places are reserved for less urgent ones, whose
        lists are read first.
Rule 4: no more messages of ordinary tasks are held than the worker's user allows: the script
        takes none beyond that, and a list whose next message is one is left alone until an
        ordinary task ends.
Rule 5: this runs in each pass of the event loop: what is the same for all priorities, as it
        is while no priorities are used, is computed once.

One script pops as many messages as can be used, in kombu's order of priorities and queues, and
records in the same step which worker holds them, as kombu does and for the lease: at no moment
is a message neither in its queue nor recorded.  If there are none, `QueueWakeup` waits for
the next one.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, partial
from itertools import product
from queue import Empty
from typing import Any, NamedTuple

from celery.utils.functional import noop
from kombu.transport import virtual
from kombu.utils.json import dumps
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from celery_batch.compat.kombu import BlockingPop, drop_raw_message, raw_message, redis_list
from celery_batch.compat.redis import is_read_only
from celery_batch.worker.intake.validation import MessageValidator
from celery_batch.worker.redis.lease import Lease
from celery_batch.worker.redis.scripts import script
from celery_batch.worker.redis.wakeup import QueueWakeup
from celery_batch.worker.scheduling.prefetch import OrdinaryLimit
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = ["BulkFetch", "record_single_messages"]

logger = logging.getLogger(__name__)

#: Most messages in one pass of the event loop.  Each takes 50 µs, in which no finished batch is
#: noticed and no ready one is sent.
_AT_ONCE = 64

#: Seconds after which an idle worker fetches without a wakeup, as kombu's own BRPOP does; and
#: after which a Redis that refused is tried again.
_FETCH_EVERY = 1.0


class FetchPlan(NamedTuple):
    """What the next fetch is to read."""

    lists: list[str]  # in this order, key prefix included
    queues: list[str]  # the queue of each
    most: int  # messages in all
    reserved: str  # how many at most are for each of the first lists, separated by spaces


class QueueLists:
    """The Redis lists of one channel's queues, one for each priority step, and what is in them."""

    def __init__(self, channel: Any, pop: BlockingPop, scheduler: Scheduler) -> None:
        self._channel = channel
        self._pop = pop
        self._limits = scheduler.fetch_limits
        #: Returns the list of a queue's messages of one priority step, key prefix included.
        self._name = cache(partial(redis_list, channel))
        #: The tasks of messages that have come from each queue.
        self.tasks: defaultdict[str, set[str]] = defaultdict(set)
        #: What was fetched last, and when.
        self.fetched = FetchPlan([], [], 0, "")
        self.fetched_at = 0.0
        #: Those that were empty then, until the next wakeup.
        self.empty: frozenset[str] = frozenset()
        #: Messages beyond the next batches that each queue has for this worker, as of late.
        self._ahead: dict[str, int] = {}
        #: Those whose next message is of an ordinary task, while no more of these may be held.
        self._blocked: frozenset[str] = frozenset()
        self._blocked_at = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to fetch from any list."""
        idle = self.empty | self._blocked
        return bool(idle) and idle.issuperset(self.all())

    def all(self) -> list[str]:
        """Return all lists, key prefix included; the most urgent ones of all queues come first."""
        channel = self._channel
        return [
            self._name(queue, step)
            for step, queue in product(channel.priority_steps, channel.active_queues)
        ]

    def plan(self, credit: int, most: int) -> FetchPlan:
        """Return what to fetch; `credit` is what is left of the prefetch."""
        steps, queues = self._channel.priority_steps, self._pop.queues()
        limits, tasks, ahead = self._limits, self.tasks.get, self._ahead.get
        usable = {
            queue: limits.usable(tasks(queue), steps, credit, ahead(queue, 0)) for queue in queues
        }
        if not any(map(any, usable.values())):
            return FetchPlan([], [], most, "")
        guaranteed = {queue: limits.guaranteed(tasks(queue), steps, credit) for queue in queues}
        places = [
            (name, queue, at)
            for (at, step), queue in product(enumerate(steps), queues)
            if (name := self._name(queue, step)) not in self._blocked
        ]
        first = [(name, queue, n) for name, queue, at in places if (n := guaranteed[queue][at])]
        others = [(name, queue, n) for name, queue, at in places if (n := usable[queue][at])]
        return FetchPlan(
            [name for name, *_ in (*first, *others)],
            [queue for _, queue, _ in (*first, *others)],
            min([most, *(n for *_, n in others)]),
            " ".join(str(n) for *_, n in first),
        )

    def note_fetch(self, plan: FetchPlan, now: float) -> None:
        """Note that this is fetched now, on the monotonic clock."""
        self.fetched, self.fetched_at, self.empty = plan, now, frozenset()

    def note_empty(self) -> None:
        """Note that there was nothing; a message that waits in a blocked list must wake nobody."""
        self.empty = frozenset(self.fetched.lists) - self._blocked

    def note_none_left(self) -> None:
        """Note that nothing is left in the lists that were read."""
        self._ahead.update(dict.fromkeys(self.fetched.queues, 0))

    def note_left(self, left: Iterable[int], workers: int) -> None:
        """Note this worker's part of what is left in the lists that were read."""
        lists, queues, *_ = self.fetched
        ahead = dict.fromkeys(queues, 0)
        by_list = dict(zip(lists, zip(queues, left, strict=True), strict=True))
        for queue, messages in by_list.values():  # a list may have been read in two places
            ahead[queue] += messages
        self._ahead.update({queue: count // workers for queue, count in ahead.items()})

    def note_blocked(self, places: Iterable[int]) -> None:
        """Note the places, from 1 on, of lists that were not read on: an ordinary task is next."""
        if blocked := {self.fetched.lists[place - 1] for place in places}:
            if not self._blocked:
                self._blocked_at = self.fetched_at
            self._blocked |= blocked

    def unblock(self, now: float, ordinary: OrdinaryLimit) -> None:
        """Read blocked lists again, if one more may be held or others may have taken the next."""
        # Counting may go through all requests, so it is left out where nothing is blocked.
        if self._blocked and (now - self._blocked_at >= _FETCH_EVERY or ordinary.left() != 0):
            self._blocked = frozenset()


class BulkFetch:
    """Fetches messages in bulk on one channel, in place of kombu's BRPOP."""

    def __init__(
        self,
        channel: Any,
        hub: Any,
        lease: Lease,
        scheduler: Scheduler,
        validator: MessageValidator,
        ordinary: OrdinaryLimit,
    ) -> None:
        self._channel = channel
        self._qos = channel.qos
        self._lease = lease
        self._scheduler = scheduler
        self._validator = validator
        self._ordinary = ordinary
        self._pop = BlockingPop(channel)
        self._lists = QueueLists(channel, self._pop, scheduler)
        self._is_closed = False
        self._awaits_reply = False
        #: Whether to fetch from lists that were empty a moment ago, too.
        self._is_refresh_wanted = False
        self._is_refused = False
        #: Delivery tags that the script has recorded, until kombu records them, too.
        self._recorded: set[str] = set()
        self._wakeup = QueueWakeup(channel, hub, self._wake)
        # The loop also sees then that the worker is to end; before kombu 5.7 only BRPOP's reply,
        # each second, has an idle loop look.
        self._timer = hub.call_repeatedly(_FETCH_EVERY, noop)
        self._record = _recorder(lease)
        self._sha = lease.client.script_load(script("fetch"))
        self._pop.replace(self._fetch, self._read_reply)
        channel.qos.append = self._append
        self._is_within_prefetch = channel.qos.can_consume
        channel.qos.can_consume = lambda: True  # in bulk it is asked for each list
        scheduler.fetch = self

    def close(self) -> None:
        """Fetch no more; a reply that is on its way can still be read."""
        self._is_closed = True
        self._timer.cancel()
        self._wakeup.close()

    def end(self) -> None:
        """Fetch no more, and put back the messages of a reply that is on its way."""
        self.close()
        if self._awaits_reply:
            with suppress(Empty):
                found = self._messages()
                self._restore([tag for _, tag, _ in found if tag])
                self._push_back(found)

    def _restore(self, tags: list[str]) -> None:
        self._lease.restorer.restore_not_run(tags, self._lease.keys.owner)

    def _push_back(self, found: list[tuple[str, str, bytes]]) -> None:
        """Put back messages that Redis has not recorded, as they have no usable delivery tag."""
        for queue, tag, message in reversed(found):
            if not tag:
                self._channel.client.rpush(queue, message)

    def refresh(self) -> None:
        """Fetch in the next pass of the event loop, without a wakeup."""
        self._is_refresh_wanted = bool(self._channel.active_queues)

    @property
    def is_refreshing(self) -> bool:
        """Whether a reply of Redis is on its way, or a fetch ahead that `refresh` asked for."""
        return not self._is_closed and (self._is_refresh_wanted or self._awaits_reply)

    def _wake(self) -> None:
        self._lists.empty = frozenset()

    def _fetch(self, timeout: float | None = None) -> None:  # noqa: ARG002 (kombu's signature)
        """Replace sending BRPOP; called in each pass in which the prefetch allows more."""
        if self._awaits_reply:
            # Kombu has closed the socket.  Messages that Redis may have sent are recorded for
            # this connection's owner, and are put back when the connection ends.
            raise RedisConnectionError("a reply of Redis has been lost")
        now, known = time.monotonic(), self._lists
        is_soon = now - known.fetched_at < _FETCH_EVERY and not self._is_refresh_wanted
        self._is_refresh_wanted = False
        known.unblock(now, self._ordinary)
        if is_soon and known.is_idle:
            return
        plan = known.plan(self._credit(), _AT_ONCE)
        lists, most = plan.lists, plan.most
        if not lists or (is_soon and known.empty.issuperset(lists)):
            return
        keys, lease = self._lease.keys, self._lease
        known.note_fetch(plan, now)
        self._pop.note_sent(now)
        names = [keys.index, keys.unacked, keys.owner_of, keys.held, keys.due, keys.alive]
        self._awaits_reply = True
        self._channel.client.connection.send_command(
            "EVALSHA",
            self._sha,
            len(names) + len(lists),
            *names,
            *lists,
            most,
            keys.owner,
            lease.description,
            lease.milliseconds,
            plan.reserved,
            *self._ordinary_arguments(most),
        )

    def _ordinary_arguments(self, most: int) -> tuple[int | str, ...]:
        """Return what the script is told of ordinary tasks; nothing if it needs no limit."""
        left = self._ordinary.left()
        if left is None or left >= most:
            return ()
        return left, "\n".join(["", *(each.task.name for each in self._scheduler), ""])

    def _credit(self) -> int:
        """Return how many more messages the prefetch allows."""
        if not self._is_within_prefetch():
            return 0
        credit = self._qos.can_consume_max_estimate()
        return _AT_ONCE if credit is None else max(credit, 1)

    def _read_reply(self, **_: Any) -> bool:
        """Read Redis' reply and deliver its messages; raise `Empty` if there are none."""
        found = self._messages()
        if not found:
            lists = self._lists
            lists.note_empty()
            if not self._pop.is_closing:
                self._wakeup.wait(filter(lists.empty.__contains__, lists.all()))
            raise Empty
        self._pop.rotate(found[0][0])
        with self._scheduler.adding_many():
            self._deliver(found)
        return True

    def _messages(self) -> list[tuple[str, str, bytes]]:
        """Return queue, delivery tag ("" if it is not recorded) and text of each message."""
        channel = self._channel
        try:
            found = channel.client.parse_response(channel.client.connection, "EVALSHA")
        except channel.connection_errors:
            channel.client.connection.disconnect()
            raise
        except ResponseError as error:
            self._lists.note_empty()  # not again in this very pass
            self._handle_refusal(error)
            raise Empty from error
        finally:
            self._awaits_reply = False
            self._pop.note_read()
        self._is_refused = False
        if not found:
            self._lists.note_none_left()
            return []
        lengths, joined, left, workers, blocked = found
        self._lists.note_left(map(int, left.split()), workers)
        self._lists.note_blocked(map(int, blocked.split()))
        return self._parse(lengths, joined)

    def _parse(self, lengths: bytes, joined: list[bytes]) -> list[tuple[str, str, bytes]]:
        numbers, texts, end, found = map(int, lengths.split()), b"".join(joined), 0, []
        for at, in_tag, in_message in zip(numbers, numbers, numbers, strict=True):
            start, end = end + in_tag, end + in_tag + in_message
            tag = texts[start - in_tag : start].decode()
            found.append((self._lists.fetched.queues[at - 1], tag, texts[start:end]))
        return found

    def _handle_refusal(self, error: ResponseError) -> None:
        if is_read_only(error):  # a replica by now: the next connection may find another
            raise ReadOnlyError(str(error)) from error
        if isinstance(error, NoScriptError):
            self._sha = self._lease.client.script_load(script("fetch"))
        elif not self._is_refused:
            self._is_refused = True
            logger.warning("Redis refuses to deliver messages (%s): tried again soon", error)

    def _deliver(self, found: list[tuple[str, str, bytes]]) -> None:
        found = self._without_late_ones(found)
        self._recorded.update(tag for _, tag, _ in found if tag)
        decoded = self._validator.decode_many([message for *_, message in found])
        decoded.reverse()
        while found:
            queue, tag, message = found.pop(0)
            try:
                then = partial(self._remove, tag) if tag else noop
                envelope = self._validator.read(message, then, decoded.pop())
                if envelope is not None:
                    self._note_task(queue, envelope.get("headers"))
                    self._pop.deliver(envelope, queue)
                elif tag:
                    self._recorded.discard(tag)
            except Exception:
                # The other messages have left their queues and reached no request: put them back.
                for tag in [tag for _, tag, _ in found if tag]:
                    self._qos.restore_by_tag(tag)
                self._push_back(found)
                raise

    def _without_late_ones(
        self, found: list[tuple[str, str, bytes]]
    ) -> list[tuple[str, str, bytes]]:
        """Put back messages of queues that are no longer consumed."""
        active = self._channel.active_queues
        late = [tag for queue, tag, _ in found if tag and queue not in active]
        if not late:
            return found
        self._restore(late)
        return [each for each in found if each[1] not in late]

    def _note_task(self, queue: str, headers: Any) -> None:
        task = (headers or {}).get("task")
        if isinstance(task, str) and task in self._scheduler:
            self._lists.tasks[queue].add(task)

    def _remove(self, tag: str) -> None:
        """Remove the record of a refused message."""
        if self._is_closed:
            return  # it is put back with its connection
        virtual.QoS.append(self._qos, None, tag)  # so that the prefetch is counted right
        self._qos.ack(tag)

    def _append(self, message: Any, tag: str) -> None:
        if tag in self._recorded:
            self._recorded.discard(tag)
        else:
            self._record(message, tag)
        drop_raw_message(message)  # Redis has it
        self._ordinary.add(tag, message.headers)
        virtual.QoS.append(self._qos, message, tag)


def _recorder(lease: Lease) -> Callable[[Any, str], None]:
    """Return what records a message that kombu has read by itself as held under a lease."""
    keys, run = lease.keys, lease.client.register_script(script("record"))

    def record(message: Any, tag: str) -> None:
        info = message.delivery_info
        entry = dumps([raw_message(message), info["exchange"], info["routing_key"]])
        run(
            keys=[keys.index, keys.unacked, keys.owner_of, keys.held, keys.due],
            args=[keys.owner, tag, entry],
        )

    return record


def record_single_messages(channel: Any, lease: Lease) -> None:
    """Have kombu fetch messages by itself, one at a time, and hold them under a lease."""
    record, qos = _recorder(lease), channel.qos

    def append(message: Any, tag: str) -> None:
        record(message, tag)
        virtual.QoS.append(qos, message, tag)

    qos.append = append
