"""Checks of the broker."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from difflib import get_close_matches

from celery_batch.checks.facts import Facts, Redis, Task
from celery_batch.checks.finding import Finding, ok, problem, warning

__all__ = [
    "broker",
    "clock",
    "confirms",
    "eviction",
    "options",
    "persistence",
    "priorities",
    "visibility",
]

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

#: Seconds in which nobody can be sure that a batch has ended.
_SHORT = 60.0


def broker(facts: Facts) -> Iterator[Finding]:
    """Whether it answers, and whether it knows what we use."""
    server = facts.broker
    if server.error:
        yield problem(
            f"The broker does not answer at {server.url}: {server.error}",
            "Start it, or correct broker_url (CELERY_BROKER_URL).",
        )
    elif server.kind not in ("redis", "amqp"):
        yield warning(
            f"The broker is {server.kind}, on which celery_batch is not tested.",
            "Use Redis or RabbitMQ.",
        )
    elif server.redis is None:
        yield ok(f"{server.version or server.kind} answers at {server.url}.")
    else:
        yield from _of_redis(server.url, server.redis, bulk=facts.conf.bulk)


def _of_redis(url: str, redis: Redis, *, bulk: bool) -> Iterator[Finding]:
    version = ".".join(map(str, redis.version or ()))
    fine = True
    if redis.version is None:
        fine = False
        yield warning(
            f"Redis answers at {url} and does not let this user run INFO: its version, memory and"
            " persistence are not checked.",
            "Run the check once as a user who may (ACL SETUSER USER +info).",
        )
    elif redis.version < _WITH_BLMOVE:
        fine = False
        yield warning(
            f"Redis {version} knows no BLMOVE: messages are read one by one.",
            "Use Redis 6.2 or later, or Valkey.",
        )
    if not redis.scripts:
        fine = False
        yield warning(
            "This user may not run scripts on the broker: messages are read and acknowledged"
            " one by one, and held without a lease.",
            "Give the worker's user the rules of docs/security.md.",
        )
    if not bulk:
        fine = False
        yield warning(
            "batch_bulk is off: messages go one by one, and are held without a lease.",
            "Leave the setting out, unless you are looking for a fault.",
        )
    if fine:
        yield ok(f"Redis {version} answers at {url}.")


def eviction(facts: Facts) -> Iterator[Finding]:
    """Redis' memory: what it does when there is none left."""
    redis = facts.broker.redis
    if redis is None or redis.policy is None:
        return
    if redis.maxmemory and redis.policy.startswith("allkeys"):
        yield problem(
            f"The broker's maxmemory-policy is {redis.policy}: when its memory is full, Redis"
            " throws away messages.",
            _NO_EVICTION,
        )
    elif redis.maxmemory and redis.policy.startswith("volatile"):
        yield warning(
            f"The broker's maxmemory-policy is {redis.policy}: when its memory is full, Redis"
            " keeps messages, and may throw away workers' signs of life, so that what they run"
            " runs twice.",
            _NO_EVICTION,
        )
    elif redis.maxmemory and (redis.used or 0) > _NEARLY_FULL * redis.maxmemory:
        yield warning(
            f"The broker uses {(redis.used or 0) / redis.maxmemory:.0%} of its maxmemory; full, it"
            " refuses every call.",
            "Give it more, shorten result_expires, or bound queues with max_queue.",
        )
    else:
        room = f"{redis.maxmemory >> 20:,} MiB" if redis.maxmemory else "no limit of memory"
        yield ok(f"Redis has {room} and throws nothing away.")


def persistence(facts: Facts) -> Iterator[Finding]:
    """What a broker remembers that is started again."""
    redis = facts.broker.redis
    if redis is None or redis.appendonly is None:
        return
    if redis.appendonly:
        yield ok("The broker writes down what waits in it (append-only file).")
    elif redis.snapshots:
        yield warning(
            "The broker takes snapshots only: one that is killed loses what came since the last.",
            "CONFIG SET appendonly yes, and write it into redis.conf.",
        )
    else:
        kept = "nothing" if redis.snapshots is not None else "no append-only file"
        yield warning(
            f"The broker keeps {kept} on disk: one that is started again has lost what waited.",
            "CONFIG SET appendonly yes, and write it into redis.conf.",
        )


def visibility(facts: Facts) -> Iterator[Finding]:
    """The broker's patience, after which messages that are still held run a second time."""
    redis = facts.broker.redis
    longest = max((_held_for(task.time_limit, task.max_wait) for task in facts.tasks), default=0)
    if facts.broker.kind == "amqp" and longest > _CONSUMER_TIMEOUT:
        yield warning(
            f"A message may be held for {longest:g} s, and RabbitMQ closes the channel of whoever"
            f" holds one for {_CONSUMER_TIMEOUT:g} s, unless it was told otherwise.",
            "Raise consumer_timeout (milliseconds) in rabbitmq.conf, or lower time_limit.",
        )
    if redis is None:
        return
    given = facts.conf.transport_options.get("visibility_timeout", _VISIBILITY)
    seconds = float(given) if isinstance(given, (int, float)) else _VISIBILITY
    if facts.conf.bulk and redis.scripts:
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


def _held_for(limit: float | None, max_wait: float) -> float:
    """Return the seconds for which a message may be held: gathered, ready and running."""
    return max_wait + 3 * (limit or _SHORT)


def priorities(facts: Facts) -> Iterator[Finding]:
    """Whether a backfill can be put behind those who wait for their answers."""
    if facts.broker.kind == "amqp":
        yield from map(_like_bulk, filter(_is_like_bulk, facts.tasks))
        plain = {each.queue for each in facts.tasks if not (each.priorities or each.is_quorum)}
        for queue in sorted(plain):
            yield warning(
                f"Queue {queue} has no priorities: a backfill's messages stand among those of"
                " people who wait.",
                "Set task_queue_max_priority=10 and task_default_priority=5; RabbitMQ wants a queue"
                " that exists already to be deleted first.",
            )
    steps = facts.conf.transport_options.get("priority_steps")
    if facts.broker.kind == "redis" and isinstance(steps, Sized) and len(steps) == 1:
        yield warning(
            "priority_steps has one step: a backfill's messages stand among those of people who"
            " wait.",
            "Leave it out of broker_transport_options; kombu's are 0, 3, 6 and 9.",
        )


def _is_like_bulk(task: Task) -> bool:
    """Say whether calls of a task have a backfill's priority, 0, or what counts as that."""
    if task.is_quorum:
        return task.priority < _URGENT_IN_QUORUM
    return task.priorities and not task.priority


def _like_bulk(task: Task) -> Finding:
    kind = ", a quorum queue, which only knows above and below 5" if task.is_quorum else ""
    return warning(
        f"Calls of {task.name} have priority {task.priority} unless they name another, which is"
        f" no better than a backfill's in queue {task.queue}{kind}.",
        "Set task_default_priority=5 (quorum queues have priorities from RabbitMQ 4.0 on).",
    )


def confirms(facts: Facts) -> Iterator[Finding]:
    """Whether callers on RabbitMQ wait until their message is safe."""
    if facts.broker.kind == "amqp" and not facts.conf.transport_options.get("confirm_publish"):
        yield warning(
            "Callers do not wait for the broker's word: what is on its way to a broker that dies"
            " is lost.",
            'Set broker_transport_options = {"confirm_publish": True}.',
        )


def options(facts: Facts) -> Iterator[Finding]:
    """Transport options that are nearly right: a transport passes over what it does not know."""
    known = facts.broker.options
    for name in facts.conf.transport_options:
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
            f"The broker's clock differs from this machine's by {redis.ahead:+.1f} s, and who"
            " sends with expires or an ETA may be misunderstood where clocks differ.",
            "Run NTP on every machine.",
        )
