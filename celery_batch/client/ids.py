"""Ids of tasks and messages."""

from __future__ import annotations

from os import urandom

__all__ = ["new_id"]

#: Each hexadecimal digit with the two bits that say which kind of UUID it is.
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def new_id() -> str:
    """Return a random UUID as Celery's are, for a third of the price."""
    digits = urandom(16).hex()
    return (
        f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}"
        f"-{_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:]}"
    )
