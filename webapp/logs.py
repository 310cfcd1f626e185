"""
What the web process writes down: every line with the request it belongs to.

One line for each answer, on the logger ``webapp.access``: no body, no query, no secret.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from webapp import request_id

__all__ = ["AccessLine", "WithRequestId", "configure"]

access = logging.getLogger("webapp.access")

#: Whose lines are written our way; the servers' loggers keep to themselves.
_LOGGERS = ("", "gunicorn.error", "uvicorn", "uvicorn.error")

_TEXT = "%(asctime)s %(levelname)s %(name)s %(process)d [%(request_id)s] %(message)s"

#: Characters of a client's own words in a line.
_LONGEST = 200


class WithRequestId(logging.Filter):
    """Gives every record the attribute ``request_id``, for a format to show."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attribute; let every record pass."""
        record.request_id = request_id.current()
        return True


class AccessLine(dict[str, Any]):
    """What is said of one answer, as ``key=value`` unless a formatter wants it otherwise."""

    def __str__(self) -> str:
        """Return one line, whatever a client has put into its path."""
        return " ".join(f"{key}={_word(value)}" for key, value in self.items())


def _word(value: Any) -> str:
    if not isinstance(value, str):
        return f"{value:.6f}" if isinstance(value, float) else str(value)
    if value.isascii() and value.isprintable() and not set(value) & {" ", '"', "="}:
        return value[:_LONGEST] or "-"
    return json.dumps(value[:_LONGEST])


class _Text(logging.Formatter):
    """One line, with the time in UTC: frameworks have ideas of their own about zones."""

    converter = time.gmtime  # type: ignore[assignment]  # the stubs know of one default only
    default_msec_format = "%s.%03dZ"


class _Json(_Text):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON, an exception's trace included."""
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "request_id": getattr(record, "request_id", request_id.NONE),
        }
        if isinstance(record.msg, Mapping):
            line |= record.msg
        else:
            line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=repr)


def configure(form: str) -> None:
    """
    Have the log of this process show requests' names, once its server has set it up.

    Args:
        form: ``text`` or ``json``; ``off`` leaves every format alone, so that a format
            of your own may show ``%(request_id)s``.
    """
    root = logging.getLogger()
    if form != "off" and not root.handlers:
        root.addHandler(logging.StreamHandler())
    # Django warns of each refusal, too, which the line of its answer tells.
    logging.getLogger("django.request").setLevel(logging.ERROR)
    for handler in {each for name in _LOGGERS for each in logging.getLogger(name).handlers}:
        if not any(isinstance(each, WithRequestId) for each in handler.filters):
            handler.addFilter(WithRequestId())
        if form != "off":
            handler.setFormatter(_Json() if form == "json" else _Text(_TEXT))
    if form != "off" and access.level == logging.NOTSET:
        access.setLevel(logging.INFO)
