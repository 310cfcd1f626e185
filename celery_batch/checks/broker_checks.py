"""Checks of the broker."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from difflib import get_close_matches
from typing import Any

from celery_batch.checks.facts import Facts, Redis, Server
from celery_batch.checks.finding import Finding, ok, problem, warning
from celery_batch.config import policy_of

#: Without it an idle worker cannot wait for messages without taking one.
_WITH_BLMOVE = (6, 2)

#: The share of Redis' memory above which it is soon full.
_NEARLY_FULL = 0.9

#: How alike names have to be to be taken for one another, of 1.
_ALIKE = 0.8

_NO_EVICTION = "CONFIG SET maxmemory-policy noeviction, and write it into redis.conf."

#: Seconds that clocks may differ.
_APART = 1.0

#: Seconds, Celery's own.
_VISIBILITY = 3600.0

#: The least priority that quorum queues put before others.
_URGENT_IN_QUORUM = 5

#: Seconds, RabbitMQ's own.
_CONSUMER_TIMEOUT = 1800.0

#: The first RabbitMQ whose quorum queues have a delivery limit unless they are given one, that
#: limit, and the first one that does not count the orderly stop of a worker.
_WITH_LIMIT, _DEFAULT_LIMIT, _COUNTS_FAILURES = (4,), 20, (4, 3)

#: Seconds that a batch without a time limit may take, as a guess.
_SHORT = 60.0


def broker(facts: Facts) -> Iterator[Finding]:
    """Whether it answers, and whether it knows what we use."""
    server = facts.broker
    if server.error:
        yield problem(
            f"The broker does not answer at {server.url}: {server.error}",
            "Start it, or correct broker_url (CELERY_BROKER_URL).",
        )
    elif server.is_blocked:
        yield problem(
            f"{server.version} at {server.url} accepts no messages at the moment: it is short of"
            " memory or disk (connection.blocked).",
            "Free some; rabbitmq-diagnostics alarms says which node is short of what. The workers"
            " could not be asked meanwhile.",
        )
    elif server.kind not in ("redis", "amqp"):
        yield warning(
            f"The broker is {server.kind}: messages are sent and fetched one by one.",
            "Use Redis or RabbitMQ.",
        )
    elif server.redis and (found := list(_of_redis(server, server.redis, bulk=facts.bulk))):
        yield from found
    else:
        yield ok(f"{server.version or server.kind} answers at {server.url}.")


def _of_redis(server: Server, redis: Redis, *, bulk: bool) -> Iterator[Finding]:
    if redis.info is None:
        yield warning(
            f"Redis answers at {server.url} and does not let this user run INFO: its version,"
            " memory and persistence are not checked.",
            "Run the check once as a user with that right (ACL SETUSER USER +info).",
        )
    elif _numbers(redis.info["redis_version"]) < _WITH_BLMOVE:
        yield warning(
            f"{server.version} knows no BLMOVE: messages are read one by one.",
            "Use Redis 6.2 or later, or Valkey.",
        )
    elif redis.info.get("role") == "slave" and redis.info.get("slave_read_only"):
        yield problem(
            f"The Redis at {server.url} is a read-only replica: it takes no messages.",
            "Name the Redis that it follows, or Sentinels (sentinel://...), which know it.",
        )
    if not redis.scripts:
        yield warning(
            "This user may not run scripts on the broker: messages are read and acknowledged"
            " one by one, and held without a lease.",
            "Give the worker's user the rules on the page Security of the documentation.",
        )
    if not bulk:
        yield warning(
            "batch_bulk is off: messages go one by one, and are held without a lease.",
            "Leave the setting out, unless you are looking for a fault.",
        )


def eviction(facts: Facts) -> Iterator[Finding]:
    """Redis' memory: what it does when there is none left."""
    redis = facts.broker.redis
    if redis is None or redis.info is None:
        return
    info = redis.info
    policy = str(info.get("maxmemory_policy", "noeviction"))
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if most and policy.startswith("allkeys"):
        yield problem(
            f"The broker's maxmemory-policy is {policy}: when its memory is full, Redis"
            " throws away messages.",
            _NO_EVICTION,
        )
    elif most and policy.startswith("volatile"):
        yield warning(
            f"The broker's maxmemory-policy is {policy}: when its memory is full, Redis"
            " keeps messages, and may evict workers' leases, so that running messages run"
            " twice.",
            _NO_EVICTION,
        )
    elif most and used >= most:
        yield problem(
            f"The broker is full: it uses {used >> 20:,} MiB, all of its maxmemory, and refuses"
            " calls and results, for which workers wait.",
            "Give it more memory with CONFIG SET maxmemory, and write it into redis.conf; then"
            " shorten result_expires, or bound queues with max_queue.",
        )
    elif most and used > _NEARLY_FULL * most:
        yield warning(
            f"The broker uses {used / most:.0%} of its maxmemory; full, it refuses every call.",
            "Give it more, shorten result_expires, or bound queues with max_queue.",
        )
    else:
        room = f"{most >> 20:,} MiB" if most else "no limit of memory"
        yield ok(f"Redis has {room} and evicts nothing.")


def persistence(facts: Facts) -> Iterator[Finding]:
    """What a broker still has after a restart."""
    redis = facts.broker.redis
    if redis is None or redis.info is None:
        return
    if int(redis.info.get("aof_enabled", 0)):
        yield ok("The broker keeps waiting messages on disk (append-only file).")
    elif redis.snapshots:
        yield warning(
            "The broker takes snapshots only: if it is killed, messages since the last are lost.",
            "CONFIG SET appendonly yes, and write it into redis.conf.",
        )
    else:
        kept = "nothing" if redis.snapshots is not None else "no append-only file"
        yield warning(
            f"The broker keeps {kept} on disk: a restart loses waiting messages.",
            "CONFIG SET appendonly yes, and write it into redis.conf.",
        )


def visibility(facts: Facts) -> Iterator[Finding]:
    """The broker's timeout, after which messages that are still held run a second time."""
    redis = facts.broker.redis
    longest = max(map(_held_for, facts.tasks), default=0.0)
    if facts.broker.kind == "amqp" and longest > _CONSUMER_TIMEOUT:
        yield warning(
            f"A message may be held for {longest:g} s, and RabbitMQ closes the channel of a worker"
            f" that holds one for {_CONSUMER_TIMEOUT:g} s, unless it is set otherwise.",
            "Raise consumer_timeout (milliseconds) in rabbitmq.conf, or lower time_limit.",
        )
    if redis is None:
        return
    given = facts.transport_options.get("visibility_timeout", _VISIBILITY)
    seconds = float(given) if isinstance(given, (int, float)) else _VISIBILITY
    if facts.bulk and redis.scripts:
        yield ok(
            "Held messages are leased: the visibility timeout"
            f" ({seconds:g} s) runs nothing twice while a worker lives."
        )
        return
    if seconds <= longest:
        yield problem(
            f"The visibility timeout is {seconds:g} s, and a message may be held for"
            f" {longest:g} s: it would run twice.",
            'Raise broker_transport_options["visibility_timeout"] well above that, or turn'
            " batch_bulk on.",
        )
    else:
        yield ok(f"The visibility timeout, {seconds:g} s, is above what a batch may take.")


def _held_for(task: Any) -> float:
    """Return the seconds for which a message may be held: gathered, ready and running."""
    return policy_of(task).max_wait + 3.0 * (task.time_limit or _SHORT)


def priorities(facts: Facts) -> Iterator[Finding]:
    """Whether the messages of a backfill can be put behind those of requests."""
    if facts.broker.kind == "amqp":
        yield from _like_bulk(facts)
        for queue in sorted({*facts.queues.values()}):
            if _has_priorities(facts.app, queue) or _is_quorum(facts.app, queue):
                continue
            yield warning(
                f"Queue {queue} has no priorities: a backfill's messages are not behind other"
                " requests.",
                "Set task_queue_max_priority=10 and task_default_priority=5; RabbitMQ wants a queue"
                " that exists already to be deleted first.",
            )
    steps = facts.transport_options.get("priority_steps")
    if facts.broker.kind == "redis" and isinstance(steps, Sized) and len(steps) == 1:
        yield warning(
            "priority_steps has one step: a backfill's messages are not behind other requests.",
            "Leave it out of broker_transport_options; kombu's are 0, 3, 6 and 9.",
        )


def _like_bulk(facts: Facts) -> Iterator[Finding]:
    """Name tasks whose calls have a backfill's priority, 0, or one that counts as that."""
    for task in facts.tasks:
        queue, priority = facts.queues[task.name], task.priority or 0
        if _is_quorum(facts.app, queue):
            kind = ", a quorum queue, which only knows above and below 5"
            is_like_bulk = priority < _URGENT_IN_QUORUM
        else:
            kind, is_like_bulk = "", _has_priorities(facts.app, queue) and not priority
        if is_like_bulk:
            yield warning(
                f"Calls of {task.name} have priority {priority} unless they name another, which is"
                f" no higher than a backfill's in queue {queue}{kind}.",
                "Set task_default_priority=5 (quorum queues have priorities from RabbitMQ 4.0 on).",
            )


def deliveries(facts: Facts) -> Iterator[Finding]:
    """Whether RabbitMQ drops what has come back too often, which leaves its caller waiting."""
    if facts.broker.kind != "amqp":
        return
    version = _numbers(facts.broker.version)
    for queue in sorted({*facts.queues.values()}):
        arguments = _arguments(facts.app, queue)
        limit = arguments.get("x-delivery-limit", _DEFAULT_LIMIT if version >= _WITH_LIMIT else -1)
        is_kept = arguments.get("x-dead-letter-exchange") is not None
        if is_kept or limit < 0 or not _is_quorum(facts.app, queue):
            continue
        stopped = "killed" if version >= _COUNTS_FAILURES else "stopped or killed"
        yield warning(
            f"Quorum queue {queue} has a delivery limit of {limit} and, as far as the app knows, no"
            " dead-letter exchange: RabbitMQ drops a message that more workers had when they were"
            f" {stopped}, and its caller never gets a result.",
            "Give the queue x-dead-letter-exchange and x-dead-letter-routing-key, and have the"
            " workers consume the queue of dead letters as well (page Delivery and faults of the"
            " documentation).",
        )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as ``RabbitMQ 3.10.8``; none if it is not known."""
    return tuple(int(part) for part in version.rpartition(" ")[2].split(".") if part.isdigit())


def _arguments(app: Any, queue: str) -> dict[str, Any]:
    return getattr(app.amqp.queues.get(queue), "queue_arguments", None) or {}


def _is_quorum(app: Any, queue: str) -> bool:
    return bool(_arguments(app, queue).get("x-queue-type") == "quorum")


def _has_priorities(app: Any, queue: str) -> bool:
    declared = getattr(app.amqp.queues.get(queue), "max_priority", None)
    own = declared or _arguments(app, queue).get("x-max-priority")
    return bool(own or app.conf.task_queue_max_priority)


def confirms(facts: Facts) -> Iterator[Finding]:
    """Whether callers on RabbitMQ wait until their message is safe."""
    if facts.broker.kind == "amqp" and not facts.transport_options.get("confirm_publish"):
        yield warning(
            "Callers do not wait for the broker's confirmation: if the broker dies, messages in"
            " transit are lost.",
            'Set broker_transport_options = {"confirm_publish": True}.',
        )


def options(facts: Facts) -> Iterator[Finding]:
    """Transport options that are nearly right: a transport passes over what it does not know."""
    known = facts.broker.options
    for name in facts.transport_options:
        near = get_close_matches(name, known, n=1, cutoff=_ALIKE)
        if name not in known and near:
            yield warning(
                f"broker_transport_options has {name!r}, which the transport does not know.",
                f"Did you mean {near[0]!r}?",
            )


def clock(facts: Facts) -> Iterator[Finding]:
    """Whether clocks agree: expiry and ETA are times of day."""
    redis = facts.broker.redis
    if redis is None or redis.ahead is None:
        return
    if abs(redis.ahead) > _APART:
        yield warning(
            f"The broker's clock differs from this machine's by {redis.ahead:+.1f} s, and"
            " messages with expires or an ETA may be misunderstood where clocks differ.",
            "Run NTP on every machine.",
        )
