"""What others want of a running backfill: that it pauses, goes on, or stops."""

from __future__ import annotations

from celery_batch.errors import BackfillStopped

__all__ = ["Reins"]


class Reins:
    """
    Held by whoever may steer a job; the job looks at them between two turns.

    Each is set by one thread and read by another, and nothing else depends on it, hence
    no lock.
    """

    def __init__(self) -> None:
        #: Nothing more is to be sent; what is on its way is still collected.
        self.is_paused = False
        #: The job is to end, as if interrupted.
        self.is_stopped = False

    def pause(self) -> None:
        """Have nothing more sent."""
        self.is_paused = True

    def resume(self) -> None:
        """Have it go on."""
        self.is_paused = False

    def stop(self) -> None:
        """Have it end."""
        self.is_stopped = True

    def check(self) -> None:
        """
        Do nothing unless the job is to end.

        Raises:
            BackfillStopped: It is.
        """
        if self.is_stopped:
            raise BackfillStopped("stopped with celery batch jobs")
