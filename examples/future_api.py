"""
The Future API: submit everything at once, then collect the answers as they are wanted.

    python -m examples.future_api
    python -m examples.future_api 2        # two processes
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import track

from celery_batch import Model
from celery_batch.streamer import Streamer
from workers.models.infilling import SENTENCES, TextInfilling

__all__ = ["main"]

SUBMITS = 200

#: Seconds until an answer is given up.
TIMEOUT = 60


def main(model: type[Model] = TextInfilling, worker_num: int = 1) -> list[list[str]]:
    """
    Submit three sentences 200 times, and return the three answers to each.

    Args:
        model: What answers.
        worker_num: How many processes hold a model.
    """
    streamer = Streamer(model, batch_size=64, max_latency=0.1, worker_num=worker_num)
    try:
        futures = [streamer.submit(list(SENTENCES)) for _ in range(SUBMITS)]
        answers = [future.result(TIMEOUT) for future in track(futures, "Filling in")]
    finally:
        streamer.destroy_workers()
    return answers


if __name__ == "__main__":
    console = Console(markup=False, highlight=False)
    last = main(worker_num=int(sys.argv[1]) if sys.argv[1:] else 1)[-1]
    for sentence, word in zip(SENTENCES, last, strict=True):
        console.print(f"{sentence} → {word}")
