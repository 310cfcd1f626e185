"""
Images in CUDA graphs: a graph for each size of a batch, recorded before the worker takes a task.

    celery batch redis                                     # prints lines for the others
    celery -A examples.cuda_graphs worker --concurrency=1
    python -m examples.cuda_graphs cat.jpg dog.png

A graph starts all kernels of a network at once, but only for the very shape it was recorded with.
Without a GPU the network runs as ever, in calls of the same sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery
from rich.console import Console

from examples.image_classifier import ImageClassifier

__all__ = ["GraphClassifier", "Graphs", "app", "classify", "main"]

app = Celery("cuda_graphs")  # reads CELERY_BROKER_URL and CELERY_RESULT_BACKEND
app.conf.task_default_queue = "cuda_graphs"  # other examples may share the broker


class GraphClassifier(ImageClassifier):
    """The classifier of pictures, whose network runs in graphs."""

    batch_sizes = (1, 2, 4, 8, 16, 32)

    def load(self, device: str) -> None:
        """Load the network; its graphs are recorded in the warm-up."""
        super().load(device)
        self.network = Graphs(self.network, self.batch_sizes)


@dataclass(frozen=True, slots=True)
class _Graph:
    input: Any
    output: Any
    replay: Callable[[], object]


class Graphs:
    """
    A network that runs in graphs.

    Args:
        network: Takes and returns a tensor.
        sizes: The numbers of rows that its calls have.
    """

    def __init__(self, network: Any, sizes: tuple[int, ...]) -> None:
        self._network, self._sizes = network, sizes
        self._pool: Any = None
        #: By number of rows.
        self.recorded: dict[int, _Graph] = {}

    def __call__(self, rows: Any) -> Any:
        """
        Run the network.

        Args:
            rows: On the network's device; fewer than the call has where pictures were broken.
        """
        size = min(each for each in self._sizes if each >= len(rows))
        if size not in self.recorded:
            self.recorded[size] = self._record(rows.new_zeros(size, *rows.shape[1:]))
        graph = self.recorded[size]
        graph.input[: len(rows)].copy_(rows)
        graph.replay()
        return graph.output[: len(rows)].clone()

    def _record(self, rows: Any) -> _Graph:
        import torch  # noqa: PLC0415 - a client needs none

        output = self._network(rows)
        if not rows.is_cuda:
            return _Graph(rows, output, lambda: output.copy_(self._network(rows)))
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries choose their kernels, which no graph may do
            for _ in range(3):
                self._network(rows)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()  # graphs share their memory
        # A reload records on a thread of its own, while another network runs batches.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = self._network(rows)
        return _Graph(rows, output, graph.replay)


classify = GraphClassifier.as_task(app, name="classify")


def main(*paths: str) -> list[dict[str, Any]]:
    """Return what is in some pictures."""
    results = classify.delay_many([Path(path).read_bytes() for path in paths])
    return [result.get(timeout=60) for result in results]


if __name__ == "__main__":
    for path, answer in zip(sys.argv[1:], main(*sys.argv[1:]), strict=True):
        Console().print(f"{path}: {answer}")
