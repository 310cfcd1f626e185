"""Finds out where an app's large values lie, and whether this process can use that place."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from kombu.utils.url import maybe_sanitize_url

from celery_batch.checks.collect_servers import redis_of, why
from celery_batch.checks.facts import PayloadFacts
from celery_batch.client.results.listener import ResultReader
from celery_batch.errors import ConfigurationError
from celery_batch.payloads.app_payloads import AppPayloads
from celery_batch.payloads.store import (
    DirectoryPayloads,
    PayloadStore,
    RedisPayloads,
    StoreError,
    StoreRefused,
)

__all__ = ["payloads_of"]

#: What is stored to see whether that works, and the seconds until it expires.
_SAMPLE, _SECONDS = b"celery batch check", 60.0

#: Seconds after which a worker should have deleted a file that has expired: two of its looks.
_OVERDUE = 1200.0


def payloads_of(app: Any) -> PayloadFacts | None:
    """Return the payload store of an app; a small payload is stored there, read and deleted."""
    named = app.conf.get("batch_payload_store")
    url = maybe_sanitize_url(named) if isinstance(named, str) else ""
    try:
        store = AppPayloads.of(app).store
    except ConfigurationError as error:
        return PayloadFacts(kind="unknown", url=url, error=why(error))
    except Exception:  # noqa: BLE001 (no such result backend, of which another check speaks)
        return None
    if store is None:
        return PayloadFacts(kind="off" if named is False else "none")
    if isinstance(store, RedisPayloads):
        return _of_redis(store)
    if isinstance(store, DirectoryPayloads):
        return _of_directory(store)
    return _tried(store, {"kind": urlsplit(url).scheme, "url": url})


def _of_redis(store: RedisPayloads) -> PayloadFacts:
    backend = store.backend
    url = maybe_sanitize_url(str(backend.as_uri()))
    try:  # with a client that does not wait for long
        redis = redis_of(ResultReader(backend).client())
    except Exception as error:  # noqa: BLE001 (whatever the server or its library raises)
        return PayloadFacts(kind="redis", url=url, error=why(error))
    return _tried(store, {"kind": "redis", "url": url, "redis": redis})


def _of_directory(store: DirectoryPayloads) -> PayloadFacts:
    about: dict[str, Any] = {"kind": "directory", "url": str(store.path)}
    try:
        if not store.path.exists():  # which the first payload would make, with our rights
            return PayloadFacts(**about, is_missing=True)
        expired, overdue = store.expired(), store.expired(ago=_OVERDUE)
    except OSError as error:
        return PayloadFacts(**about, error=why(error))
    return _tried(store, {**about, "expired": len(expired), "overdue": len(overdue)})


def _tried(store: PayloadStore, about: dict[str, Any]) -> PayloadFacts:
    """Return the facts of a store, after a payload of ours has been there and back."""
    key = f"check-{uuid4().hex}"
    try:
        store.put(key, _SAMPLE, _SECONDS)
    except StoreRefused as error:
        return PayloadFacts(**about, refused=why(error))
    except StoreError as error:
        return PayloadFacts(**about, error=why(error))
    try:
        (data,) = store.get([key], [len(_SAMPLE)])
        store.delete([key])
    except StoreError as error:
        lost = f"it takes values, and does not return or delete them: {why(error)}"
        return PayloadFacts(**about, error=lost)
    if data != _SAMPLE:
        return PayloadFacts(**about, error="what is stored there does not come back.")
    return PayloadFacts(**about)
