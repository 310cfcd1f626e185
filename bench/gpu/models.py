"""The models that are measured on a GPU, and what their calls write down."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.gpu.networks import PIXELS, VOCABULARY, convnet, encoder
from bench.models.encoder import texts
from celery_batch import Model, padding
from celery_batch.config import LARGEST_BATCH

__all__ = [
    "BUDGETS",
    "CALLS",
    "MODELS",
    "ROWS",
    "SIZES",
    "CollatedImages",
    "Convnet",
    "CopiedImages",
    "Encoder",
    "FixedConvnet",
    "GraphConvnet",
    "TextEncoder",
    "items",
]

#: The environment variable that names the file to which each call of a model adds a line.
CALLS = "BENCH_GPU_CALLS"

#: The sizes of full batches; Python 3.12 before 3.12.10 allows none of 256.
_WANTED = os.environ.get("BENCH_GPU_SIZES", "1 4 16 64 256")
SIZES = [min(int(size), LARGEST_BATCH) for size in _WANTED.split()]

#: The sizes in rows, and the costs in padded tokens, of batches of texts of unlike lengths.
ROWS, BUDGETS = (32, 64), (8192, 16_384)

_DTYPE = os.environ.get("BENCH_GPU_DTYPE", "bfloat16")
_TOKENS, _IMAGES = 128, 512


def items(name: str, count: int) -> list[Any]:
    """Return inputs, small on the wire and each unlike its neighbours."""
    if name == "convnet":
        return list(range(count))
    return [[(7 * row + 13 * word) % VOCABULARY for word in range(_TOKENS)] for row in range(count)]


class _Net(Model):
    """What all models share: random weights, and a clock around the device's work."""

    make: Callable[[Any], Any]
    dtype_name = _DTYPE

    def load(self, device: str) -> None:
        """Make the model on its device, the same weights wherever it is made."""
        import torch  # noqa: PLC0415 - the worker's parent and the client need none

        torch.manual_seed(0)
        torch.set_num_threads(1)  # where the CPU is the device, as many do not help tiny models
        self.torch: Any = torch
        self.device = torch.device(device)
        self.gpu = self.device.type == "cuda"
        self.dtype = getattr(torch, self.dtype_name) if self.gpu else torch.float32
        self.net = self.make(torch.nn).eval().to(self.device, self.dtype)
        self.calls = Path(os.environ[CALLS]).open("a", buffering=1)  # noqa: SIM115 - while it lives

    @contextmanager
    def timed(self, rows: int, tokens: int = 0) -> Iterator[None]:
        """Write down when a call began and ended, and for how long the device had work in it."""
        marks = [self.torch.cuda.Event(enable_timing=True) for _ in range(2 * self.gpu)]
        started = time.monotonic()
        with self.torch.inference_mode():
            for mark in marks[:1]:
                mark.record()
            yield
            for mark in marks[1:]:
                mark.record()
                mark.synchronize()
        ended = time.monotonic()
        busy = marks[0].elapsed_time(marks[1]) / 1000 if marks else ended - started
        self.calls.write(f"{started} {ended} {busy} {rows} {tokens}\n")

    def to_device(self, rows: Any) -> Any:
        """Copy a tensor to the device, from pinned memory."""
        return (rows.pin_memory() if self.gpu else rows).to(self.device, non_blocking=True)


class Encoder(_Net):
    """BERT-base's size: 12 layers of width 768, 128 tokens."""

    make = staticmethod(encoder)

    def examples(self) -> Sequence[Any]:
        """Warm up with the largest batch that will come."""
        return items("encoder", max(SIZES))

    def predict(self, batch: list[list[int]]) -> list[int]:
        """Answer with the class of each text."""
        with self.timed(len(batch)):
            ids = self.to_device(self.torch.tensor(batch, dtype=self.torch.int32))
            answers: list[int] = self.net(ids).argmax(1).tolist()
        return answers


class TextEncoder(Encoder):
    """The same in float16, for texts of unlike lengths, each batch padded to its longest."""

    dtype_name = "float16"

    def examples(self) -> Sequence[Any]:
        """Warm up with texts of many lengths."""
        return texts(max(ROWS), seed=9)

    def predict(self, batch: list[list[int]]) -> list[int]:
        """Answer with the first score of each text, in thousandths."""
        longest = max(map(len, batch))
        with self.timed(len(batch), longest * len(batch)):
            ids, mask = padding.pad_torch(batch, dtype=self.torch.int32)
            scores = self.net(self.to_device(ids), self.to_device(mask))
            answers: list[int] = (1000 * scores[:, 0].float()).round().int().tolist()
        return answers


class Convnet(_Net):
    """ResNet-50's size: 16 blocks, 224 by 224 pixels."""

    make = staticmethod(convnet)

    def load(self, device: str) -> None:
        """Take photographs of noise as well."""
        super().load(device)
        self.net = self.net.to(memory_format=self.torch.channels_last)
        shape = (_IMAGES, 3, PIXELS, PIXELS)
        self.images = self.torch.randint(0, 256, shape, dtype=self.torch.uint8)

    def examples(self) -> Sequence[Any]:
        """Warm up with the largest batch that will come."""
        return items("convnet", max(SIZES))

    def picked(self, batch: list[int]) -> Any:
        """Return images by their numbers, in the memory of the device."""
        return self.to_device(self.images[self.torch.tensor(batch) % _IMAGES])

    def numbers(self, pixels: Any) -> Any:
        """Make the network's input of bytes, on the device."""
        rows = pixels.to(self.dtype).div_(255).sub_(0.45).div_(0.225)
        return rows.contiguous(memory_format=self.torch.channels_last)

    def predict(self, batch: list[int]) -> list[int]:
        """Answer with the class of each image."""
        with self.timed(len(batch)):
            rows = self.numbers(self.picked(batch))
            answers: list[int] = self.net(rows).argmax(1).tolist()
        return answers


class FixedConvnet(Convnet):
    """The same in calls of few sizes."""

    batch_sizes = (1, 2, 4, 8, 16, 32, 64)


class GraphConvnet(FixedConvnet):
    """The same in CUDA graphs, one for each size of a call."""

    def load(self, device: str) -> None:
        """Make the network; its graphs are recorded in the warm-up."""
        from examples.cuda_graphs import Graphs  # noqa: PLC0415 (needs Pillow)

        super().load(device)
        self.net = Graphs(self.net, self.batch_sizes)


class CopiedImages(Convnet):
    """The same, for batches of images that are picked and copied in `predict`."""


class CollatedImages(Convnet):
    """The same, for batches of images that are picked and copied beside the batch before."""

    def load(self, device: str) -> None:
        """Copy on a stream of its own."""
        super().load(device)
        self.stream = self.torch.cuda.Stream() if self.gpu else None

    def collate(self, batch: list[int]) -> Any:
        """Pick the images, and copy them to the device."""
        with self.torch.cuda.stream(self.stream):
            return self.picked(batch)

    def predict(self, pixels: Any) -> Any:
        """Answer with the class of each image."""
        if self.stream is not None:
            current = self.torch.cuda.current_stream()
            current.wait_stream(self.stream)
            pixels.record_stream(current)
        with self.timed(len(pixels)):
            answers: list[int] = self.net(self.numbers(pixels)).argmax(1).tolist()
        return answers


MODELS: dict[str, type[_Net]] = {"encoder": Encoder, "convnet": Convnet}
