"""

The text of a result, made only if a log line or an event shows it.

Celery's tracer makes it of every result: 0.1 ms for a few hundred numbers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery.app import trace
from celery.utils.saferepr import saferepr

__all__ = ["is_shown", "showing_results"]


class _Thread(threading.local):
    """What a thread does at present."""

    #: Whether texts of results are made on it.
    makes_texts = True


_thread = _Thread()


def is_shown(*, by_events: bool) -> bool:
    """
    Say whether the text of a result is shown to somebody.

    Args:
        by_events: The worker sends events of its tasks.
    """
    return by_events or trace.logger.isEnabledFor(logging.INFO)


@contextmanager
def showing_results(shown: bool) -> Iterator[None]:  # noqa: FBT001 (the one thing it is about)
    """
    Have Celery's tracers of this thread make the texts of results, or leave them out.

    Args:
        shown: Whether somebody is shown them.
    """
    before, _thread.makes_texts = _thread.makes_texts, shown
    try:
        yield
    finally:
        _thread.makes_texts = before


def _text_of(value: Any, *args: Any, **options: Any) -> str | None:
    """Take the place of Celery's `saferepr` in its tracers."""
    return saferepr(value, *args, **options) if _thread.makes_texts else None


if getattr(trace, "saferepr", None) is saferepr:  # else a Celery that makes it in another way
    trace.saferepr = _text_of
