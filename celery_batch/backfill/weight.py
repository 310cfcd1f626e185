"""About how much memory a value takes."""

from __future__ import annotations

from typing import Any

__all__ = ["weight"]

#: Bytes of a number, and of whatever else is small.
_SMALL = 8

#: Members of a list by which a long one is judged.
_SAMPLE = 8

#: What most rows of numbers are made of: told at once.
_NUMBERS = frozenset((int, float, bool, type(None)))


def weight(value: Any) -> int:
    """
    Return about how many bytes a value has.

    Texts count a byte for each character, and of long lists a few members stand for all.

    Args:
        value: What goes into a message.
    """
    if type(value) in _NUMBERS:
        return _SMALL
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return len(value)
    if isinstance(value, dict):
        return sum(weight(name) + weight(each) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        if len(value) <= _SAMPLE:
            return sum(map(weight, value))
        sample = value[:: len(value) // _SAMPLE]
        return sum(map(weight, sample)) * len(value) // len(sample)
    return _SMALL
