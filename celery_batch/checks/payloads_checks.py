"""Checks of the store of large values."""

from __future__ import annotations

from collections.abc import Iterator

from celery_batch.checks.facts import Facts, PayloadFacts
from celery_batch.checks.finding import Finding, ok, problem, warning

_WITHOUT = (
    "Correct batch_payload_store, or set it to False: large values then travel in their messages."
)


def payloads(facts: Facts) -> Iterator[Finding]:
    """Where large values lie, and whether they stay there for as long as they are needed."""
    found = facts.payloads
    if found is None or not facts.tasks:
        return
    if found.kind == "off":
        yield ok("Large values travel in their messages: batch_payload_store is False.")
    elif found.kind == "none":
        yield ok(
            "Large values travel in their messages: neither results nor messages are in Redis,"
            " and batch_payload_store names no other place."
        )
    elif found.kind == "unknown":
        yield problem(f"The payload store cannot be used: {found.error}", _WITHOUT)
    elif found.error:
        yield problem(
            f"The payload store does not answer at {found.url}: {found.error}",
            f"Start it, and let callers and workers write, read and delete there. {_WITHOUT}",
        )
    elif found.refused:
        yield warning(
            f"The payload store at {found.url} refuses values of this user, which travel in their"
            f" messages: {found.refused}",
            "Let callers and workers write, read and delete there; for Redis see the rules on the"
            " page Security of the documentation.",
        )
    elif found.is_missing:
        yield warning(
            f"The directory of the payload store, {found.url}, does not exist: the process"
            " that stores the first value creates it, for its own user.",
            "Mount or create it on all hosts, so that callers and workers may write there.",
        )
    else:
        yield from _usable(found)


def _usable(found: PayloadFacts) -> Iterator[Finding]:
    if found.redis and (policy := found.redis.evicts):
        yield warning(
            f"The maxmemory-policy of the payload store is {policy}: when memory is full, large"
            " values may vanish before they are read, and their tasks fail.",
            "CONFIG SET maxmemory-policy noeviction, or name another batch_payload_store.",
        )
    elif found.overdue:
        files = "file" if found.overdue == 1 else "files"
        yield warning(
            f"{found.overdue:,} {files} in {found.url} expired more than 20 minutes ago, and no"
            " worker has deleted them.",
            "Run a worker with this batch_payload_store, as a user who may delete these files.",
        )
    elif found.expired is not None:
        yield ok(
            f"Large values lie in the directory {found.url}; {found.expired:,} of its files have"
            " expired, and workers delete these."
        )
    else:
        where = "Redis" if found.kind == "redis" else "the object store"
        yield ok(f"Large values lie beside their messages, in {where} at {found.url}.")
