"""The types and sizes of single values in messages."""

from __future__ import annotations

import math
from typing import Any

from celery_batch.rows import MOST_ROWS

__all__ = [
    "LONGEST_NAME",
    "are_limits",
    "are_signatures",
    "are_stamps",
    "is_count",
    "is_flag",
    "is_flat",
    "is_list_of_texts",
    "is_name",
    "is_rows",
    "is_short_text",
    "is_signature",
    "is_text",
]

#: Characters of an id, a name, a content type: AMQP's own limit for such texts.
LONGEST_NAME = 255

#: Values of Celery's headers that hold nothing.
_NOTHING: tuple[Any, ...] = ({}, [], [None, None])

#: Retries and the like; far above any use, far below what is slow to print.
LARGEST_COUNT = 2**31


_LISTS = (list, tuple, set, frozenset)

#: Types of values that hold no others, whatever their size.
_SINGLE = frozenset((int, float, bool, type(None)))

#: Most values, and most characters of them and their names, far below any limit.
_FEW_VALUES, _FEW_CHARACTERS = 100, 10_000


def is_flat(table: dict[Any, Any], known: Any = None) -> bool:
    """
    Return whether a table has few and short values, and no nested ones.

    Args:
        table: As decoded.
        known: A value in it that has been checked already.
    """
    if len(table) > _FEW_VALUES:
        return False
    size = 0
    for name, value in table.items():
        if type(name) is not str:
            return False
        size += len(name)
        kind = type(value)
        if kind is str:
            size += len(value)
        elif kind not in _SINGLE and value is not known and value not in _NOTHING:
            return False
    return size <= _FEW_CHARACTERS


def is_text(value: Any) -> bool:
    """Return whether a value is a text."""
    return isinstance(value, str)


def is_short_text(value: Any) -> bool:
    """Return whether a value is a short text of one line."""
    return isinstance(value, str) and len(value) <= LONGEST_NAME and value.isprintable()


def is_name(value: Any) -> bool:
    """Return whether a value is a short text that is not empty, as ids and names are."""
    return is_short_text(value) and value != ""


def is_flag(value: Any) -> bool:
    """Return whether a value is true or false."""
    return isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number that counts something."""
    return isinstance(value, int) and not is_flag(value) and 0 <= value < LARGEST_COUNT


def is_rows(value: Any) -> bool:
    """Return whether a value is a number of rows that a chunk may have."""
    return is_count(value) and 1 <= value <= MOST_ROWS


def _is_limit(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not is_flag(value)
    return value is None or (is_number and 0 <= value < math.inf)


def are_limits(value: Any) -> bool:
    """Return whether a value is a hard and a soft time limit, each a number of seconds or None."""
    if value == [None, None]:
        return True
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2  # noqa: PLR2004 (hard and soft)
    return is_pair and all(map(_is_limit, value))


def is_list_of_texts(value: Any) -> bool:
    """Return whether a value is a list of texts, as the names of stamps are."""
    return isinstance(value, _LISTS) and all(map(is_text, value))


def are_stamps(value: Any) -> bool:
    """Return whether a value is stamps by name: each a text or number, or a list of these."""
    return isinstance(value, dict) and all(map(_is_stamp, value.values()))


def _is_stamp(value: Any) -> bool:
    each = value if isinstance(value, _LISTS) else [value]
    return all(isinstance(one, (str, int, float, type(None))) for one in each)


def is_signature(value: Any) -> bool:
    """Return whether a value is a task to call, as Celery serializes it."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("task"), str)
        and isinstance(value.get("args"), (list, tuple, type(None)))
        and isinstance(value.get("kwargs"), (dict, type(None)))
        and isinstance(value.get("options"), (dict, type(None)))
    )


def are_signatures(value: Any) -> bool:
    """Return whether a value is one task to call or several, or None."""
    if value is None or is_signature(value):
        return True
    return isinstance(value, (list, tuple)) and all(map(is_signature, value))
