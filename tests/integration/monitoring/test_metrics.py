"""The Prometheus metrics of a real worker."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.servers.worker_metrics import scrape
from tests.services.setup import ROOT, Setup, Worker, emptied, open_setup
from tests.services.shared_setup import eventually

NVML = ROOT / "tests" / "services" / "nvml"


@pytest.fixture(scope="module")
def setup(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """The tests' app; its worker stays for all tests of this module."""
    with open_setup(emptied(redis_server), tmp_path_factory.mktemp("metrics")) as setup:
        yield setup


@pytest.fixture(scope="module")
def worker(setup: Setup) -> Worker:
    """A worker with two pool processes, forty results, and metrics."""
    worker = setup.worker(
        *("-c", "2"), CELERY_BATCH_METRICS="127.0.0.1:0", PYTHONPATH=f"{NVML}:{ROOT}"
    )
    for result in [setup.double.delay(n) for n in range(40)]:
        result.get(timeout=30)
    worker.counted("shop.double", succeeded=40)
    return worker


@pytest.fixture
def url(worker: Worker) -> str:
    """The URL of its metrics, from its statistics."""
    return worker.ask("batch_stats")["metrics"]


def test_numbers_are_those_of_batch_stats(worker: Worker, url: str):
    """One endpoint has the numbers of all pool processes, equal to those of the command."""
    stats = worker.ask("batch_stats")["tasks"]["shop.double"]
    found = scrape(url)
    of = '{task="shop.double"}'

    assert 40 == found['celery_batch_requests_total{outcome="succeeded",task="shop.double"}']
    assert 40 == found[f"celery_batch_batch_size_sum{of}"] == found[f"celery_batch_rows_total{of}"]
    assert 40 == found[f"celery_batch_wait_seconds_count{of}"]
    assert stats["batches"] == found[f"celery_batch_model_seconds_count{of}"]
    assert stats["model"]["seconds"] == pytest.approx(
        found[f"celery_batch_model_seconds_sum{of}"], abs=1e-5
    )
    assert 2 == found["celery_batch_processes"]
    assert 0 < found["celery_batch_device_idle_seconds_total"]


def test_numbers_of_queue_process_and_gpu_are_there(url: str):
    """Metrics include queue depths, and GPUs where NVIDIA's library has any."""
    depth = 'celery_batch_queue_depth{queue="celery"}'
    # A scrape waits 2 s for the broker.
    found = eventually(lambda: depth in (found := scrape(url)) and found, "the depth of the queue")

    assert 0 == found[depth]
    assert 0.87 == found['celery_batch_gpu_utilization_ratio{gpu="0"}']
    assert 80 << 30 == found['celery_batch_gpu_memory_total_bytes{gpu="0"}']
    assert 0 < found["process_resident_memory_bytes"]
    assert [name for name in found if name.startswith("celery_batch_worker_info{")]


def test_gpus_that_batch_devices_leaves_out_have_no_metrics(setup: Setup):
    """A worker on the CPU has no GPU metrics."""
    worker = setup.worker(
        *("-c", "1", "-Q", "elsewhere"),
        conf={"batch_devices": "cpu"},
        CELERY_BATCH_METRICS="127.0.0.1:0",
        PYTHONPATH=f"{NVML}:{ROOT}",
    )
    found = scrape(worker.ask("batch_stats")["metrics"])

    assert "process_resident_memory_bytes" in found
    assert [] == [name for name in found if name.startswith("celery_batch_gpu_")]


def test_failures_are_counted_from_zero(url: str):
    """A counter that appears with the first failure would hide that from an alert."""
    found = scrape(url)

    assert 0 == found['celery_batch_requests_total{outcome="failed",task="shop.odd"}']
    assert 0 == found['celery_batch_batch_ends_total{end="lost",task="shop.double"}']
    assert 0 == found['celery_batch_out_of_memory_total{task="shop.clerk"}']
    assert 0 == found['celery_batch_paused{task="shop.double"}']
    assert 0 == found['celery_batch_drained{task="shop.double"}']


def test_second_worker_takes_the_next_port_of_a_range(setup: Setup):
    """Several workers on a machine share a setting with a range of ports."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = setup.worker("-P", "solo", conf={"batch_metrics": f"127.0.0.1:{port}-{port + 50}"})
        url = other.ask("batch_stats")["metrics"]

        assert port < int(re.findall(r":(\d+)/", url)[0]) <= port + 50
        assert "celery_batch_processes" in scrape(url)

        other.stop()


def test_taken_port_is_tried_again(setup: Setup):
    """A worker whose port is taken logs it, runs, and has metrics when the port is free."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = setup.worker("-P", "solo", CELERY_BATCH_METRICS=str(port))

        assert f"127.0.0.1:{port} is taken" in other.log
        assert other.ask("batch_stats")["metrics"] is None

    wait_until(
        lambda: "" if other.ask("batch_stats")["metrics"] else "no metrics",
        [other.child],
        what=other.name,
        timeout=60,
    )
    other.stop()


@pytest.mark.parametrize("address", ["somewhere", "host:99999", "9000-8000"])
def test_wrong_address_is_a_failed_start(setup: Setup, address: str):
    """The worker ends, and logs the valid forms."""
    other = setup.launch("-P", "solo", CELERY_BATCH_METRICS=address)

    assert other.child.wait(60)
    assert "CELERY_BATCH_METRICS: must be HOST:PORT" in other.log
    assert 0 != other.child.exit_code
