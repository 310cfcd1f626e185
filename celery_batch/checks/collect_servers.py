"""Asks the broker and the result backend what the checks need."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any

from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import NoPermissionError, RedisError

from celery_batch.broker_depth import can_read_depth, open_depth_reader
from celery_batch.checks.facts import Redis, Server
from celery_batch.client.results.listener import ResultReader
from celery_batch.cluster.control_client import impatient_connection
from celery_batch.errors import ConfigurationError
from celery_batch.worker.redis.answer_cache import cache_backend

__all__ = ["broker_of", "cache_of", "depths_of", "redis_of", "results_of", "why"]


def broker_of(app: Any) -> Server:
    """Return the broker of an app."""
    try:
        found = impatient_connection(app)
    except Exception as error:  # noqa: BLE001 (no such transport, or no library for it)
        url = maybe_sanitize_url(str(app.conf.broker_url))
        return Server(kind="unknown", url=url, error=why(error))
    with found as connection:
        kind, url = str(connection.get_transport_cls().driver_type), connection.as_uri()
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
            if kind == "redis":
                channel = connection.default_channel
                options = tuple(channel.from_transport_options)
                redis = redis_of(channel.client)
                version = f"Redis {redis.info['redis_version']}" if redis.info else ""
                return Server(kind=kind, url=url, version=version, redis=redis, options=options)
            return Server(kind=kind, url=url, version=_product(connection))
        except Exception as error:  # noqa: BLE001 (whatever a transport raises)
            return Server(kind=kind, url=url, error=why(error))


def results_of(app: Any) -> Server:
    """Return the result backend of an app."""
    named = app.conf.result_backend
    if not named or named == "disabled":
        return Server(kind="none")
    url = maybe_sanitize_url(str(named))
    try:
        if not ResultReader.supports(app.backend):
            kind = type(app.backend).__name__.removesuffix("Backend").lower()
            return Server(kind=kind, url=url)
        return Server(kind="redis", url=url, redis=redis_of(ResultReader(app.backend).client()))
    except Exception as error:  # noqa: BLE001 (no such backend, or no library for it, or away)
        return Server(kind="unknown", url=url, error=why(error))


def cache_of(app: Any, tasks: Sequence[str]) -> Server | None:
    """Return where the answers of these tasks are kept; None without tasks."""
    if not tasks:
        return None
    try:
        backend = cache_backend(app, tasks[0])
    except ConfigurationError as error:
        return Server(kind="none", error=str(error))
    url = maybe_sanitize_url(str(backend.as_uri()))
    try:
        return Server(kind="redis", url=url, redis=redis_of(ResultReader(backend).client()))
    except Exception as error:  # noqa: BLE001 (whatever the server or its library raises)
        return Server(kind="redis", url=url, error=why(error))


def depths_of(app: Any, queues: set[str]) -> dict[str, int]:
    """Return how many messages wait in these queues; nothing where the broker cannot say it."""
    with suppress(Exception):
        if can_read_depth(app):
            with closing(open_depth_reader(app)) as reader:
                return {queue: reader.count(queue) for queue in sorted(queues)}
    return {}


def redis_of(client: Any) -> Redis:
    """Return the state of the Redis that a client is connected to."""
    return Redis(
        info=_if_permitted(client.info),
        snapshots=_snapshots(client),
        scripts=_if_permitted(lambda: client.execute_command("EVAL", "return 1", 0)) is not None,
        ahead=_if_permitted(lambda: _ahead(client)),
    )


def _if_permitted(ask: Callable[[], Any]) -> Any:
    """Return an answer; None where the access rules forbid to ask."""
    try:
        return ask()
    except NoPermissionError:
        return None


def _ahead(client: Any) -> float:
    seconds, micros = client.time()
    return float(seconds + micros / 1e6 - time.time())


def _snapshots(client: Any) -> bool | None:
    try:
        return bool(client.config_get("save").get("save"))
    except RedisError:
        return None  # many a hosted Redis keeps its configuration to itself


def _product(connection: Any) -> str:
    properties = getattr(connection.connection, "server_properties", None) or {}
    names = (properties.get(key, "") for key in ("product", "version"))
    return " ".join(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def why(error: Exception) -> str:
    """Return an error of a server or its library as a sentence."""
    words = str(error).strip().rstrip(".") or type(error).__name__
    return f"{words}."
