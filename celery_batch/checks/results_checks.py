"""Checks of result backend, serialization and the store of large values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from urllib.parse import urlsplit

from celery_batch.checks.facts import Facts, PayloadFacts, Worker
from celery_batch.checks.finding import Finding, ok, problem, warning
from celery_batch.compat.fast_paths import PathState

#: Seconds, less than which an answer may be gone before it is read.
_SOON = 60.0

_WITHOUT_STORE = (
    "Correct batch_payload_store, or set it to False: large values then travel in their messages."
)


def results(facts: Facts) -> Iterator[Finding]:
    """Whether callers are notified of their answers, and how soon."""
    server = facts.results
    wanted = [task.name for task in facts.tasks if not task.ignore_result]
    if not wanted:
        if facts.tasks:
            yield ok("No batch task stores results.")
    elif server.kind == "none":
        yield problem(
            f"There is no result backend: no caller can get the answers of {', '.join(wanted)}.",
            "Set result_backend (CELERY_RESULT_BACKEND), or ignore_result where no caller asks.",
        )
    elif server.error:
        yield problem(
            f"The result backend does not answer at {server.url}: {server.error}",
            "Start it, or correct result_backend (CELERY_RESULT_BACKEND).",
        )
    elif server.kind == "rpc":
        yield warning(
            "The result backend is rpc: only the thread that made a call receives its result,"
            " which is lost with its process.",
            "Use Redis for results; the broker may stay what it is.",
        )
    elif server.kind != "redis":
        yield warning(
            f"The result backend is {server.kind}: callers are not notified of results,"
            " but poll for them, with pauses of up to half a second.",
            "Use Redis for results; the broker may stay what it is.",
        )
    else:
        yield from _on_redis(facts)


def _on_redis(facts: Facts) -> Iterator[Finding]:
    if facts.results.redis and (policy := facts.results.redis.evicts):
        yield warning(
            f"The maxmemory-policy of the results is {policy}: when memory is full,"
            " answers may vanish before they are read.",
            "CONFIG SET maxmemory-policy noeviction, and shorten result_expires.",
        )
    elif not facts.bulk:
        yield warning(
            "batch_bulk is off: results are stored one by one, and no caller is notified.",
            "Leave the setting out, unless you are looking for a fault.",
        )
    else:
        notified = ok(
            f"Callers are notified of their answers, many at once, by Redis at {facts.results.url}."
        )
        yield from list(_unnotified(facts)) or [notified]


def _unnotified(facts: Facts) -> Iterator[Finding]:
    """Say why callers here, or those of a worker, are not notified."""
    fix = "Leave out what is named, or let callers and workers have the same."
    if reason := _why_off("notify", facts.fast_paths):
        yield warning(f"Callers here are not notified of their answers ({reason}).", fix)
    for worker in _own_workers(facts):
        if reason := _why_off("notify", worker.fast_paths):
            yield warning(
                f"{worker.name} notifies no caller ({reason}): callers that wait to be notified"
                " poll for its answers, once a second.",
                fix,
            )


def _why_off(name: str, states: Iterable[PathState]) -> str:
    return next((state.reason for state in states if state.name == name), "")


def _own_workers(facts: Facts) -> Iterator[Worker]:
    """Yield the workers that serve tasks of this app."""
    for worker in facts.workers or ():
        if not worker.tasks.keys().isdisjoint(facts.queues):
            yield worker


def expiry(facts: Facts) -> Iterator[Finding]:
    """For how long answers are kept."""
    expires = facts.conf.result_expires
    seconds = expires.total_seconds() if isinstance(expires, timedelta) else expires
    if not facts.tasks or facts.results.kind != "redis":
        return
    if not seconds:
        yield warning(
            "result_expires is off: every answer stays in Redis for ever.",
            "Set it to the longest time after which a caller reads one, such as 600.",
        )
    elif seconds < _SOON:
        yield warning(
            f"result_expires is {seconds:g} s: an answer may be gone before it is read.",
            "Set it to more than your callers wait, such as 600.",
        )


def caches(facts: Facts) -> Iterator[Finding]:
    """Where the answers of tasks with ``cache_ttl`` are kept."""
    server = facts.cache
    if server is None:
        return
    if server.kind == "none":
        says, _, fix = server.error.partition("; ")
        yield problem(
            f"{says}: no worker of this app starts.",
            f"{(fix or 'correct batch_cache_url, or leave out cache_ttl').capitalize()}.",
        )
    elif server.error:
        yield problem(
            f"The cache of answers does not answer at {server.url}: {server.error}",
            "Start it, or correct batch_cache_url (without it, the result backend is the cache).",
        )
    else:
        yield ok(f"Answers of tasks with cache_ttl are kept in Redis at {server.url}.")


def serializers(facts: Facts) -> Iterator[Finding]:
    """Whether each side takes what the other writes."""
    for name, fix in facts.no_serializers.items():
        yield problem(f"The serializer {name} is not installed here.", fix)
    if not facts.no_serializers:
        found = list(_unlike_serializers(facts))
        yield from found or [ok(f"Messages travel as {', '.join(facts.conf.accept_content)}.")]


def _unlike_serializers(facts: Facts) -> Iterator[Finding]:
    conf, accepted = facts.conf, set(facts.conf.accept_content)
    for task in facts.tasks:
        if not accepted & _names(task.serializer):
            yield problem(
                f"{task.name} is sent as {task.serializer}, which accept_content"
                f" ({', '.join(conf.accept_content)}) does not take: every message is"
                " refused.",
                f"Add {task.serializer!r} to accept_content on the workers.",
            )
    of_results = conf.result_accept_content or conf.accept_content
    if not set(of_results) & _names(conf.result_serializer):
        yield problem(
            f"Results are written as {conf.result_serializer}, which callers do not take.",
            f"Add {conf.result_serializer!r} to result_accept_content.",
        )
    if accepted & _names("pickle"):
        yield warning(
            "accept_content has pickle: everyone who can write to the broker can run any code"
            " in the workers.",
            "Use msgpack for binary data.",
        )


def _names(serializer: str) -> set[str]:
    """Return what a serializer may be called in ``accept_content``."""
    types = {
        "json": "application/json",
        "msgpack": "application/x-msgpack",
        "pickle": "application/x-python-serialize",
        "yaml": "application/x-yaml",
        "auth": "application/data",
    }
    return {serializer, types.get(serializer, serializer)}


def payloads(facts: Facts) -> Iterator[Finding]:
    """Where large values lie, and whether they stay there for as long as they are needed."""
    found = facts.payloads
    if found is None or not facts.tasks:
        return
    if found.kind != "unknown":
        yield from _unlike_stores(facts, found.name)
    if found.kind == "off":
        yield ok("Large values travel in their messages: batch_payload_store is False.")
    elif found.kind == "none":
        yield ok(
            "Large values travel in their messages: neither results nor messages are in Redis,"
            " and batch_payload_store names no other place."
        )
    elif found.kind == "unknown":
        yield problem(f"The payload store cannot be used: {found.error}", _WITHOUT_STORE)
    elif found.error:
        yield problem(
            f"The payload store does not answer at {found.url}: {found.error}",
            f"Start it, and let callers and workers write, read and delete there. {_WITHOUT_STORE}",
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
        yield from _usable_store(found)


def _unlike_stores(facts: Facts, ours: str) -> Iterator[Finding]:
    """Name the workers that have another payload store than callers of this app."""
    fix = "Set batch_payload_store alike where calls are made and in workers."
    for worker in _own_workers(facts):
        theirs = worker.payload_store
        if theirs is None or _place(theirs) == _place(ours):
            continue
        says = (
            f"{worker.name} keeps large values {_where(theirs)}, and callers of this app keep them"
            f" {_where(ours)}"
        )
        if urlsplit(theirs).scheme == urlsplit(ours).scheme:
            yield warning(f"{says}: if these are two stores, large calls fail.", fix)
        else:
            yield problem(f"{says}: every large call fails.", fix)


def _where(store: str) -> str:
    return f"in {store}" if store else "in their messages"


def _place(store: str) -> tuple[str, str, str, str]:
    """Return where a store is, without the user: workers may have another one."""
    parts = urlsplit(store)
    return parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query


def _usable_store(found: PayloadFacts) -> Iterator[Finding]:
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
