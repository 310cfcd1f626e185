"""Collects facts of the broker and the result backend."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import NoPermissionError, RedisError

from celery_batch.broker_depth import can_read_depth, open_depth_reader
from celery_batch.checks.facts import Redis, Server
from celery_batch.client.results.listener import ResultStore
from celery_batch.cluster.control_client import impatient_connection

__all__ = ["broker_of", "depths_of", "results_of", "why"]


def broker_of(app: Any) -> Server:
    """
    Ask the broker who it is.

    Args:
        app: The Celery app.
    """
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
                redis = _redis(connection.default_channel.client)
                return Server(kind=kind, url=url, redis=redis, options=_options(connection))
            return Server(kind=kind, url=url, version=_product(connection))
        except Exception as error:  # noqa: BLE001 (whatever a transport raises)
            return Server(kind=kind, url=url, error=why(error))


def results_of(app: Any) -> Server:
    """
    Ask the result backend who it is.

    Args:
        app: The Celery app.
    """
    named = app.conf.result_backend
    if not named or named == "disabled":
        return Server(kind="none")
    url = maybe_sanitize_url(str(named))
    try:
        if not ResultStore.knows(app.backend):
            return Server(kind=_kind(app.backend), url=url)
        return Server(kind="redis", url=url, redis=_redis(ResultStore(app.backend).client()))
    except Exception as error:  # noqa: BLE001 (no such backend, or no library for it, or away)
        return Server(kind="unknown", url=url, error=why(error))


def depths_of(app: Any, queues: set[str]) -> dict[str, int]:
    """
    Return how many messages wait in some queues; none where the broker cannot say it.

    Args:
        app: The Celery app.
        queues: Their names.
    """
    with suppress(Exception):
        if can_read_depth(app):
            look = open_depth_reader(app)
            try:
                return {queue: look.count(queue) for queue in sorted(queues)}
            finally:
                look.close()
    return {}


def _kind(backend: Any) -> str:
    return type(backend).__name__.removesuffix("Backend").lower()


def _redis(client: Any) -> Redis:
    about, scripts = _info(client), _may_run_scripts(client)
    if about is None:
        nothing = dict.fromkeys(("version", "policy", "maxmemory", "used", "appendonly"))
        return Redis(**nothing, snapshots=None, scripts=scripts, ahead=_write_ahead(client))
    return Redis(
        version=tuple(
            int(part) for part in str(about["redis_version"]).split(".") if part.isdigit()
        ),
        policy=str(about.get("maxmemory_policy", "noeviction")),
        maxmemory=int(about.get("maxmemory", 0)),
        used=int(about.get("used_memory", 0)),
        appendonly=bool(int(about.get("aof_enabled", 0))),
        snapshots=_snapshots(client),
        scripts=scripts,
        ahead=_write_ahead(client),
    )


def _info(client: Any) -> Any:
    """Return what it says of itself; None where its access rules keep that from this user."""
    try:
        return client.info()
    except NoPermissionError:
        return None


def _write_ahead(client: Any) -> float | None:
    try:
        seconds, micros = client.time()
    except NoPermissionError:
        return None
    return float(seconds + micros / 1e6 - time.time())


def _snapshots(client: Any) -> bool | None:
    try:
        return bool(client.config_get("save").get("save"))
    except RedisError:
        return None  # many a hosted Redis keeps its configuration to itself


def _may_run_scripts(client: Any) -> bool:
    try:
        client.execute_command("EVAL", "return 1", 0)
    except NoPermissionError:
        return False
    return True


def _product(connection: Any) -> str:
    properties = getattr(connection.connection, "server_properties", None) or {}
    names = (properties.get(key, "") for key in ("product", "version"))
    return " ".join(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _options(connection: Any) -> tuple[str, ...]:
    """Return the names of the options that kombu's channel takes."""
    return tuple(getattr(type(connection.default_channel), "from_transport_options", ()))


def why(error: Exception) -> str:
    """
    Return an error as a sentence.

    Args:
        error: Of a server, or of its library.
    """
    words = str(error).strip().rstrip(".") or type(error).__name__
    return f"{words}."
