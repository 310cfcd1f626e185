"""Tells what interrupts a user's function from outside from what the function raises itself."""

from __future__ import annotations

from billiard.exceptions import SoftTimeLimitExceeded
from celery.exceptions import WorkerShutdown, WorkerTerminate

from celery_batch.compat.billiard import terminate_handler_fired
from celery_batch.runtime import failures

__all__ = ["is_interrupt"]

_OF_CELERY = (SoftTimeLimitExceeded, WorkerShutdown, WorkerTerminate)


def is_interrupt(error: BaseException) -> bool:
    """
    Return whether an error comes from outside the function in which it was raised.

    Args:
        error: A time limit, or what the signal handlers of a worker or a pool process raise, is
            an interrupt.  Any other `SystemExit` is the function's own error: it would end the
            worker, and its message would end the next one.
    """
    if isinstance(error, _OF_CELERY) or failures.is_interrupt(error):
        return True
    return isinstance(error, SystemExit) and terminate_handler_fired()
