"""The types and sizes of single values in messages."""

from __future__ import annotations

import math
from typing import Any

from celery_batch.rows import MOST_ROWS

__all__ = [
    "are_limits",
    "are_signatures",
    "are_stamped",
    "are_stamps",
    "is_count_or_none",
    "is_flag_or_none",
    "is_flat",
    "is_limit",
    "is_name",
    "is_name_or_none",
    "is_rows_or_none",
    "is_signature",
    "is_stamp",
    "is_text_or_none",
]

#: Characters of an id, a name, a content type: AMQP's own limit for such texts.
LONGEST_NAME = 255

#: What Celery's headers hold where there is nothing in them.
_NOTHING: tuple[Any, ...] = ({}, [], [None, None])

#: Retries and the like; far above any use, far below what is slow to print.
LARGEST_COUNT = 2**31


#: Types of values that hold no others, whatever their size.
_SINGLE = frozenset((int, float, bool, type(None)))

#: Values, and characters of them and their names, that are few beside any limit.
_FEW_VALUES, _FEW_CHARACTERS = 100, 10_000


def is_flat(table: dict[Any, Any], known: Any = None) -> bool:
    """
    Say whether a table has few values, short ones, and nothing in those.

    Args:
        table: As decoded.
        known: A value in it that has been looked at already.
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


def is_name(value: Any) -> bool:
    """Say whether a value is a short text of one line, as ids and names are."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def is_name_or_none(value: Any) -> bool:
    """Say whether a value is such a text, or left out."""
    if isinstance(value, str):
        return len(value) <= LONGEST_NAME and value.isprintable()
    return value is None


def is_text_or_none(value: Any) -> bool:
    """Say whether a value is a text, or left out."""
    return value is None or isinstance(value, str)


def is_flag_or_none(value: Any) -> bool:
    """Say whether a value is true, false, or left out."""
    return value is None or isinstance(value, bool)


def is_count_or_none(value: Any) -> bool:
    """Say whether a value is a whole number that counts something, or left out."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value is None or (is_whole and 0 <= value < LARGEST_COUNT)


def is_rows_or_none(value: Any) -> bool:
    """Say whether a value is how many rows a chunk may have, or left out."""
    return value is None or (is_count_or_none(value) and 1 <= value <= MOST_ROWS)


def is_limit(value: Any) -> bool:
    """Say whether a value is a number of seconds, or left out."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value is None or (is_number and 0 <= value < math.inf)


def are_limits(value: Any) -> bool:
    """Say whether a value is a hard and a soft time limit, or left out."""
    if value == [None, None]:
        return True
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2  # noqa: PLR2004 (hard and soft)
    return value is None or (is_pair and all(map(is_limit, value)))


def are_stamped(value: Any) -> bool:
    """Say whether a value is the names of stamps, or left out."""
    is_list = isinstance(value, (list, tuple, set, frozenset))
    return value is None or (is_list and all(isinstance(each, str) for each in value))


def are_stamps(value: Any) -> bool:
    """Say whether a value is stamps by name, or left out."""
    return value is None or (isinstance(value, dict) and all(map(is_stamp, value.values())))


def is_stamp(value: Any) -> bool:
    """Say whether a value is what a stamp may say."""
    each = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
    return all(isinstance(one, (str, int, float, type(None))) for one in each)


def is_signature(value: Any) -> bool:
    """Say whether a value is a task to call, as Celery writes one down."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("task"), str)
        and isinstance(value.get("args"), (list, tuple, type(None)))
        and isinstance(value.get("kwargs"), (dict, type(None)))
        and isinstance(value.get("options"), (dict, type(None)))
    )


def are_signatures(value: Any) -> bool:
    """Say whether a value is one task to call or several, or left out."""
    if value is None or is_signature(value):
        return True
    return isinstance(value, (list, tuple)) and all(map(is_signature, value))
