"""Where a worker serves its numbers to Prometheus."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_batch.config import Settings
from celery_batch.errors import ConfigurationError

__all__ = ["VARIABLE", "MetricsAddress", "address_of"]

#: Says it for one worker, where several have the same settings.
VARIABLE = "CELERY_BATCH_METRICS"

_LAST_PORT = 65535

_FORM = re.compile(r"(?:(?P<host>.*):)?(?P<first>\d{1,5})(?:-(?P<last>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """
    A host, and the ports of which the first free one is taken.

    Args:
        host: A name or an address of this machine; empty for all of them.
        ports: Lowest first; 0 stands for whichever is free.
    """

    host: str
    ports: range

    def __str__(self) -> str:
        first, last = self.ports[0], self.ports[-1]
        return f"{self.host}:{first}" + (f"-{last}" if last > first else "")


def address_of(app: Any, environ: Mapping[str, str] = os.environ) -> MetricsAddress | None:
    """
    Return where a worker is to serve its numbers; None for nowhere.

    Args:
        app: The Celery app, whose setting ``batch_metrics`` it is.
        environ: ``CELERY_BATCH_METRICS`` says it for this worker alone.

    Raises:
        ConfigurationError: It is no address.
    """
    name = VARIABLE
    given: Any = environ.get(VARIABLE)
    if given is None:
        name, given = "batch_metrics", Settings.of(app).metrics
    if given in (None, ""):
        return None
    found = _FORM.fullmatch(str(given)) if not isinstance(given, bool) else None
    if found:
        host, first = found["host"], int(found["first"])
        last = int(found["last"] or first)
        if first <= last <= _LAST_PORT:
            host = "127.0.0.1" if host is None else host.strip("[]")
            return MetricsAddress(host, range(first, last + 1))
    raise ConfigurationError(
        f"{name}: must be HOST:PORT or HOST:FIRST-LAST, such as 127.0.0.1:9808-9815 of which the"
        f" first free port is taken, got {given!r}"
    )
