"""What differs on a real GPU: run ``python -m pytest tests/gpu`` where there is one."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from celery_batch import Streamer, ThreadedStreamer
from celery_batch.runtime.devices import discover
from celery_batch.telemetry.gpus import find_gpus
from tests.services.setup import Setup, open_setup
from tests.services.shared_setup import SOON

pytestmark = pytest.mark.skipif(discover() == ["cpu"], reason="no NVIDIA GPU on this machine")

MODULE = "tests.apps.gpu_tasks"


@pytest.fixture
def setup(broker: str, tmp_path: Path) -> Iterator[Setup]:
    """The app on an empty Redis."""
    with open_setup(broker, tmp_path, module=MODULE) as setup:
        yield setup


def get_all(results: list[Any]) -> list[Any]:
    """Return answers, or the errors in their place."""
    return [result.get(timeout=SOON, propagate=False) for result in results]


def test_each_process_is_pinned_to_its_gpu(setup: Setup):
    """It sees that one alone, and the worker's main process has not loaded torch."""
    worker = setup.worker("-c", "2")
    answers = get_all(setup.where.delay_many(range(40)))
    maps = Path(f"/proc/{worker.stats()['pid']}/maps").read_text()

    assert 2 == len({each["pid"] for each in answers})
    assert {1} == {each["count"] for each in answers}
    assert None not in {each["visible"] for each in answers}
    assert "libtorch" not in maps


def test_tensors_on_the_gpu_travel(setup: Setup):
    """In both directions, of any floating type; they arrive in the memory of the CPU."""
    torch = pytest.importorskip("torch")
    setup.worker("-c", "1")
    kinds = [torch.float16, torch.bfloat16, torch.float32, torch.int64]
    sent = [torch.arange(6, dtype=kind).reshape(2, 3).T for kind in kinds]
    answers = get_all([setup.tensors.delay(each.cuda()) for each in sent])

    for each, answer in zip(sent, answers, strict=True):
        (part,) = answer["parts"]
        assert ("cpu", each.dtype) == (answer["doubled"].device.type, answer["doubled"].dtype)
        assert torch.equal(2 * each, answer["doubled"])
        assert torch.equal(each[0], part)


def test_batches_that_do_not_fit_are_halved(setup: Setup):
    """All are answered, the process lives, and later batches are no larger than what fitted."""
    worker = setup.worker("-c", "1")
    answers = get_all(setup.hungry.delay_many(range(32)))
    pids = {each["pid"] for each in get_all(setup.where.delay_many(range(8)))}
    later = setup.hungry.delay_many(range(64))

    assert [2 * n for n in range(32)] == answers
    assert [2 * n for n in range(64)] == get_all(later)
    assert all(each.batch_info.size < setup.ROWS_OF_ALL_MEMORY for each in later)
    assert pids == {each["pid"] for each in get_all(setup.where.delay_many(range(8)))}
    assert "out of memory" in worker.log


def test_a_gpu_that_fails_for_good_costs_one_process(setup: Setup):
    """The item at fault fails, all others are answered by a new process."""
    setup.worker("-c", "1")
    before = get_all([setup.where.delay(0)])[0]["pid"]
    items = [*range(8), 5000, *range(8)]
    answers = get_all(setup.fragile.delay_many(items))
    after = get_all([setup.where.delay(0)])[0]["pid"]

    assert [2 * n for n in range(8)] * 2 == [*answers[:8], *answers[9:]]
    assert isinstance(answers[8], Exception)
    assert before != after
    assert [2 * n for n in range(100)] == get_all(setup.fragile.delay_many(range(100)))


def test_rows_are_copied_beside_the_model(setup: Setup):
    """From pinned memory and on a stream of its own; each batch has its own numbers."""
    worker = setup.worker("-c", "1")
    answers = get_all(setup.copied.delay_many(range(3000)))

    assert [[float(n), float(n)] for n in range(3000)] == answers
    assert worker.ask("batch_stats")["tasks"]["gpu.copied"]["collate_seconds"] > 0


def image(seed: int) -> bytes:
    """Return the file of a picture of noise."""
    from PIL import Image  # noqa: PLC0415 (as the models do)

    file = BytesIO()
    pixels = random.Random(seed).randbytes(3 * 256 * 256)  # noqa: S311
    Image.frombytes("RGB", (256, 256), pixels).save(file, "PNG")
    return file.getvalue()


def test_graphs_answer_as_the_network_does(setup: Setup):
    """In batches of any size, with broken files among them, and while a reload records anew."""
    worker = setup.worker("-c", "1")
    files = [image(n) for n in range(70)]
    files[33] = b"no picture"
    plain = get_all([setup.classify.delay(each) for each in files])
    first = get_all([setup.graphs.delay(each) for each in files])
    running = [setup.graphs.delay(each) for each in files * 4]
    reply = worker.ask("batch_reload", task="gpu.graphs", wait=SOON)
    during, after = get_all(running), get_all([setup.graphs.delay(each) for each in files])

    assert "error" not in reply
    for answers in (first, during[:70], during[-70:], after):
        assert isinstance(answers[33], ValueError)
        pairs = [pair for n, pair in enumerate(zip(plain, answers, strict=True)) if n != 33]
        assert all(one["class"] == other["class"] for one, other in pairs)
        assert all(abs(one["probability"] - other["probability"]) < 0.01 for one, other in pairs)


@pytest.mark.parametrize("kind", [Streamer, ThreadedStreamer])
def test_streamers_have_their_models_on_the_gpu(kind: Any):
    """In processes of their own, and in threads."""
    options = {"worker_num": 2, "cuda_devices": (0,)} if kind is Streamer else {}
    model = importlib.import_module(MODULE).Doubler
    with kind(model, batch_size=16, max_latency=0.01, worker_timeout=SOON, **options) as streamer:
        answers = streamer.predict(list(range(100)))

    assert [2 * n for n in range(100)] == [number for number, *_ in answers]
    assert {"cuda:0"} == {device for _, device, _ in answers}


def test_the_gpu_is_measured():
    """Its memory and how busy it is, from NVIDIA's library."""
    pytest.importorskip("pynvml")
    gpus = find_gpus()
    assert gpus is not None
    samples = {
        family.name: [sample.value for sample in family.samples] for family in gpus.families()
    }

    assert 0 < samples["celery_batch_gpu_memory_used_bytes"][0]
    assert samples["celery_batch_gpu_memory_total_bytes"][0] > 1 << 30
    assert 0 <= samples["celery_batch_gpu_utilization_ratio"][0] <= 1
