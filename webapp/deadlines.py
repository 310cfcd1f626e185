"""How long a client waits, and what it would have then."""

from __future__ import annotations

import math
from typing import NamedTuple

from webapp.bodies import shown
from webapp.errors import InvalidInput
from webapp.messages import Ask

__all__ = ["Deadline", "deadline_of"]


class Deadline(NamedTuple):
    """
    A request's time.

    Args:
        within: Seconds from the first look at the request to its answer.
        lives_on: Whether the tasks go on after that, and the client is told where to
            find them.
    """

    within: float
    lives_on: bool = False


def deadline_of(ask: Ask, most: float) -> Deadline:
    """
    Return what the headers ``X-Timeout`` and ``Prefer`` (RFC 7240) say of a request's time.

    ``X-Timeout: 2.5`` and ``Prefer: wait=2`` are seconds, the first counts if both are there;
    ``Prefer: respond-async`` wants the tasks to live on.

    Args:
        ask: The request.
        most: Most seconds that are given, and what those get that do not ask for fewer.

    Raises:
        InvalidInput: ``X-Timeout`` is no number of seconds above 0.
    """
    prefer, text = ask.headers.get("prefer", ""), ask.headers.get("x-timeout")
    if not prefer and text is None:
        return Deadline(most)
    preferences = dict(_preference(part) for part in prefer.split(","))
    within = _seconds(preferences.get("wait", "") if text is None else text)
    if text is not None and within is None:
        raise InvalidInput(f"X-Timeout must be a number of seconds above 0, not {shown(text)}")
    # A preference that makes no sense is ignored, as its standard has it.
    return Deadline(min(within or most, most), "respond-async" in preferences)


def _preference(part: str) -> tuple[str, str]:
    name, _, value = part.partition(";")[0].partition("=")
    return name.strip().lower(), value.strip().strip('"')


def _seconds(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None
