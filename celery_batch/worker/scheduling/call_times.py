"""How long the calls of a task's model take, learnt from its batches."""

from __future__ import annotations

from celery_batch.batching.latency_model import LatencyModel
from celery_batch.worker.dispatch.batch_job import BatchJob

__all__ = ["CallTimes"]


class CallTimes:
    """
    Learns from the batches of one task.

    Args:
        model: What is known.
    """

    def __init__(self, model: LatencyModel | None = None) -> None:
        self.model = model or LatencyModel()
        #: Processes that have run a batch: the first one of each may be slow.
        self._warm: set[int | None] = set()

    def observe(self, job: BatchJob, *, in_cost: bool) -> bool:
        """
        Learn from a batch that has left its slot.

        Args:
            job: Of the batch.
            in_cost: Whether work is cost, not rows.

        Returns:
            Whether it went as batches go.
        """
        answer = job.answer
        work = None if answer is None else answer.work
        if answer is None or work is None:
            return False
        is_warm = job.pid in self._warm
        self._warm.add(job.pid)
        if work.began is None or work.isolated or work.out_of_memory or not is_warm:
            return False
        if None in answer.results or not work.calls:
            return False
        total = work.padded_cost if in_cost else work.rows + work.padding_rows
        if total > 0:
            self.model.observe(total / work.calls, work.seconds / work.calls)
        return True
