"""An app whose models are on a GPU, if there is one."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from celery import Celery

from celery_batch import BatchTask, Model
from examples.cuda_graphs import GraphClassifier
from examples.image_classifier import ImageClassifier

app = Celery("gpu_tasks")
app.conf.update(
    task_default_queue=os.environ.get("TESTS_QUEUE", "celery"),
    broker_connection_retry_on_startup=True,
    **json.loads(os.environ.get("TESTS_CONF", "{}")),
)

#: Rows whose memory would be that of the whole GPU.
ROWS_OF_ALL_MEMORY = 8


@app.task(base=BatchTask, name="gpu.where", max_batch_size=4)
def where(x: list[Any]) -> list[dict[str, Any]]:
    """Say which process this is and what it sees."""
    import torch  # noqa: PLC0415 (the worker's main process has none)

    seen = {
        "pid": os.getpid(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "count": torch.cuda.device_count(),
    }
    return [seen for _ in x]


@app.task(base=BatchTask, name="gpu.tensors", max_batch_size=16, linger=0.1, max_wait=1.0)
def tensors(x: list[Any]) -> list[Any]:
    """Return what each item is, doubled on the GPU, in a dict and by itself."""
    return [{"doubled": each.cuda() * 2, "parts": [each.cuda()[0]]} for each in x]


class _OnGpu(Model):
    def load(self, device: str) -> None:
        import torch  # noqa: PLC0415 (as above)

        self.torch: Any = torch
        self.device = device


class Hungry(_OnGpu):
    """Takes as much memory for each row that no more than a few fit."""

    def predict(self, batch: list[int]) -> list[int]:
        """Double the numbers, and take the memory."""
        _, total = self.torch.cuda.mem_get_info()
        rows = self.torch.ones(
            (len(batch), total // ROWS_OF_ALL_MEMORY), dtype=self.torch.uint8, device=self.device
        )
        ones = rows[:, -1].tolist()
        return [2 * one * each for one, each in zip(ones, batch, strict=True)]


class Fragile(_OnGpu):
    """Its device fails for good where an item is not below 1,000."""

    def load(self, device: str) -> None:
        """Put a table on the device."""
        super().load(device)
        self.table = 2 * self.torch.arange(1000, device=device)

    def predict(self, batch: list[int]) -> list[int]:
        """Look the numbers up in the table."""
        found: list[int] = self.table[self.torch.tensor(batch, device=self.device)].tolist()
        return found


class Copied(_OnGpu):
    """Copies its rows from pinned memory on a stream of its own, while other batches run."""

    def load(self, device: str) -> None:
        """Make a network that is busy for some milliseconds."""
        super().load(device)
        self.stream = self.torch.cuda.Stream()
        self.weights = self.torch.eye(4096, device=device)

    def examples(self) -> Sequence[Any]:
        """Warm up with a row of zeros."""
        return [0]

    def collate(self, batch: list[int]) -> Any:
        """Make rows of the numbers, and copy them."""
        rows = self.torch.empty(len(batch), 4096).copy_(self.torch.tensor(batch)[:, None])
        with self.torch.cuda.stream(self.stream):
            return rows.pin_memory().to(self.device, non_blocking=True)

    def predict(self, rows: Any) -> Any:
        """Multiply them with the matrix that changes nothing, again and again."""
        current = self.torch.cuda.current_stream()
        current.wait_stream(self.stream)
        rows.record_stream(current)
        with self.torch.inference_mode():
            for _ in range(20):
                rows = rows @ self.weights
            return rows.cpu()

    def uncollate(self, output: Any) -> list[list[float]]:
        """Return the extremes of each row, which are the number."""
        return [[float(row.min()), float(row.max())] for row in output]


class Doubler(_OnGpu):
    """Doubles numbers on the GPU."""

    def predict(self, batch: list[int]) -> list[Any]:
        """Return each number doubled, and where."""
        rows = 2 * self.torch.tensor(batch, device=self.device)
        return [[each, str(rows.device), os.getpid()] for each in rows.tolist()]


class GpuClassifier(GraphClassifier):
    """The classifier of pictures in CUDA graphs."""


hungry = Hungry.as_task(app, name="gpu.hungry", max_batch_size=32, linger=0.2, max_wait=1.0)
fragile = Fragile.as_task(app, name="gpu.fragile", max_batch_size=16, linger=0.2, max_wait=1.0)
copied = Copied.as_task(app, name="gpu.copied", max_batch_size=64)
classify = ImageClassifier.as_task(app, name="gpu.classify", max_batch_size=32)
graphs = GpuClassifier.as_task(app, name="gpu.graphs")
