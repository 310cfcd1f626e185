"""Messages and results in every form that Celery knows."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from celery import Celery
from kombu.compression import encoders

from celery_batch import MessageRefused
from celery_batch.processes.managed_process import ManagedProcess, wait_until
from tests.services.launcher import Launcher

SAFE = ["json", "yaml", "msgpack", "batch-msgpack"]
COMPRESSIONS = [None, "gzip", "bzip2", "zlib"]
if "application/zstd" in encoders():
    COMPRESSIONS.append("zstd")

#: Result serializer, its compression, and what the worker accepts.
WORKERS = {
    "json": ("gzip", SAFE),
    "yaml": ("bzip2", SAFE),
    "batch-msgpack": ("zlib", SAFE),
    "pickle": (None, [*SAFE, "pickle"]),
}

VALUE = {"text": "Grüße" * 50, "numbers": [1, 2.5, None, True], "nested": {"deep": [[]]}}


def settings(result_serializer: str) -> dict[str, Any]:
    """Return the settings of a worker and of its clients."""
    compression, accepted = WORKERS[result_serializer]
    return {
        "result_serializer": result_serializer,
        "result_compression": compression,
        "accept_content": accepted,
        "result_accept_content": accepted,
        "task_default_queue": f"serial-{result_serializer}",
    }


@pytest.fixture(scope="module")
def workers(launcher: Launcher) -> dict[str, ManagedProcess]:
    """One worker for each result serializer, with queues of their own."""
    # Celery wants to be told once more before it unpickles as root, as which tests may run;
    # only this test can reach the Redis.
    starting = {
        name: launcher.launch("tests.apps.echo", "-c", "1", conf=settings(name), C_FORCE_ROOT="1")
        for name in WORKERS
    }
    return {name: ready() for name, ready in starting.items()}


def client(launcher: Launcher, name: str) -> Celery:
    """Return a client of the worker with this result serializer."""
    return launcher.client(**settings(name))


@pytest.mark.parametrize("name", WORKERS)
def test_result_comes_back_as_it_was(
    launcher: Launcher, workers: dict[str, ManagedProcess], name: str
):
    """With each result serializer values and errors reach the caller."""
    assert workers[name].exit_code is None
    app = client(launcher, name)
    fine = app.send_task("serial.echo", (VALUE,))
    bad = app.send_task("serial.echo", ("bad",))

    assert VALUE == fine.get(timeout=30)
    with pytest.raises(ValueError, match="bad"):
        bad.get(timeout=30)


@pytest.mark.usefixtures("workers")
def test_serializers_mix_in_one_batch(launcher: Launcher):
    """Messages in every form share a batch, each decoded as its own headers say."""
    launcher.redis.delete("stage:sizes")
    app = client(launcher, "pickle")
    ways = list(product([*SAFE, "pickle"], COMPRESSIONS))
    results = [
        app.send_task("serial.echo", ([n, VALUE],), serializer=serializer, compression=compression)
        for n, (serializer, compression) in enumerate(ways)
    ]

    assert [[n, VALUE] for n in range(len(ways))] == [result.get(timeout=30) for result in results]
    assert len(launcher.facts("sizes")) < len(ways)


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("results", ["batch-msgpack", "json"])
def test_arrays_go_and_come_back_as_bytes(launcher: Launcher, results: str):
    """Some of a batch's messages have them as bytes, others as base64, and so have results."""
    app = client(launcher, results)
    sent = [{"a": np.arange(n, dtype="f4"), "t": torch.full((2, n), n)} for n in range(8)]
    answers = [
        app.send_task("serial.echo", (value,), serializer=("json", "batch-msgpack")[n % 2])
        for n, value in enumerate(sent)
    ]

    for value, answer in zip(sent, answers, strict=True):
        found = answer.get(timeout=30)
        assert value["a"].tolist() == found["a"].tolist()
        assert value["a"].dtype == found["a"].dtype
        assert value["t"].tolist() == found["t"].tolist()


@pytest.mark.usefixtures("workers")
def test_pickle_carries_what_json_cannot(launcher: Launcher):
    """Where both sides ask for pickle, any object goes there and back."""
    app = client(launcher, "pickle")
    result = app.send_task("serial.echo", ({1, (2, 3)},), serializer="pickle")

    assert {1, (2, 3)} == result.get(timeout=30)


def test_content_that_is_not_accepted_is_refused_alone(
    launcher: Launcher, workers: dict[str, ManagedProcess]
):
    """
    A message in a form that the worker does not accept goes; its neighbours are answered.

    It is reported in the worker's log, and its caller is told.
    """
    app = client(launcher, "json")
    items = ["before", "refused", "after"]
    results = [
        app.send_task("serial.echo", (item,), serializer="pickle" if item == "refused" else "json")
        for item in items
    ]

    assert ["before", "after"] == [results[n].get(timeout=30) for n in (0, 2)]
    assert "Refusing to deserialize untrusted content" in workers["json"].log.read_text()
    with pytest.raises(MessageRefused, match="untrusted content"):
        results[1].get(timeout=30)
    assert 0 == launcher.redis.llen("serial-json")
    wait_until(
        lambda: f"{held} unacknowledged" if (held := launcher.redis.hlen("unacked")) else "",
        [workers["json"]],
        what="acknowledgements",
        timeout=60,
    )
