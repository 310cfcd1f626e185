"""Errors that several callers raise, each with a traceback of its own."""

from __future__ import annotations

from copy import copy

__all__ = ["copied"]


def copied(error: BaseException) -> BaseException:
    """
    Return an equal error for one more caller: one object would collect the tracebacks of all.

    Args:
        error: What has come of something that several callers wait for.

    Returns:
        The error itself where it cannot be copied.
    """
    try:
        twin = copy(error)
    except Exception:  # noqa: BLE001 (its class has arguments of its own)
        return error
    if type(twin) is not type(error) or twin.args != error.args:
        return error
    twin.__cause__, twin.__context__ = error.__cause__, error.__context__
    twin.__suppress_context__ = error.__suppress_context__
    return twin.with_traceback(error.__traceback__)
