"""Where the Redis of a streamer is, in service-streamer's words and in Celery's."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import parse_qsl, urlencode

from celery_batch.errors import ConfigurationError

__all__ = ["DEFAULT", "connection_settings"]

#: What service-streamer's programs leave out.
DEFAULT = "localhost:6379"

#: Says what the default means on this machine, for programs that name no Redis.
VARIABLE = "CELERY_BATCH_REDIS_BROKER"

_SCHEMES = ("redis", "rediss", "redis+socket", "sentinel")
_PLACE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:/@?#\s]+)(?::(\d{1,5}))?")


def connection_settings(redis_broker: str) -> dict[str, Any]:
    """
    Return the Celery settings for a Redis that is both broker and result backend.

    Args:
        redis_broker: ``"host:port"``, or a URL of Celery's: ``redis://``, ``rediss://``,
            ``redis+socket://``, or ``sentinel://`` with ``?master_name=...``.  The default
            is wherever the environment variable ``CELERY_BATCH_REDIS_BROKER`` says.

    Raises:
        ConfigurationError: It is no address of a Redis.
    """
    if redis_broker == DEFAULT:
        redis_broker = os.environ.get(VARIABLE) or DEFAULT
    url, options = _url_of(redis_broker)
    return {
        "broker_url": url,
        # These two win over CELERY_BROKER_URL, which is about the application's own tasks.
        "broker_read_url": url,
        "broker_write_url": url,
        "result_backend": url,
        "broker_transport_options": options,
        "result_backend_transport_options": dict(options),
    }


def _url_of(given: str) -> tuple[str, dict[str, Any]]:
    scheme, mark, _ = given.partition("://")
    if not mark:
        return _from_place(given), {}
    if scheme not in _SCHEMES:
        raise ConfigurationError(
            f"redis_broker: {scheme}:// is no Redis; write host:port or one of"
            f" {', '.join(f'{each}://' for each in _SCHEMES)}"
            f" (for other brokers send BatchTask tasks yourself)"
        )
    base, _, query = given.partition("?")
    said = dict(parse_qsl(query, keep_blank_values=True))
    options = {}
    if scheme == "sentinel":
        options["master_name"] = said.pop("master_name", "")
        if not options["master_name"]:
            raise ConfigurationError(
                "redis_broker: sentinel:// needs the name of its Redis, ?master_name=..."
            )
    if scheme == "rediss":
        said.setdefault("ssl_cert_reqs", "required")
    return f"{base}?{urlencode(said)}" if said else base, options


def _from_place(given: str) -> str:
    found = _PLACE.fullmatch(given)
    if not found:
        raise ConfigurationError(
            f"redis_broker: {given!r} is no address; write host:port or redis://..."
        )
    return f"redis://{found[1]}:{found[2] or 6379}/0"
