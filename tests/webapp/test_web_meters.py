"""What Prometheus is told, by one process and by several of a real server."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest
from celery import Celery
from prometheus_client.parser import text_string_to_metric_families

from celery_batch import BatchTask, ConfigurationError
from celery_batch.cli.child import wait_until
from webapp.contract import Contract
from webapp.messages import Ask
from webapp.meters import Meters
from webapp.settings import Settings

JSON = {"content-type": "application/json"}
REQUESTS = "celery_batch_web_requests_total"


def samples(text):
    """Return each sample's value, under its name and the values of its labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def contract():
    """Yield a contract whose servers are away, and need not be there."""
    url = "redis://127.0.0.1:1"
    app = Celery("away", broker=url, backend=url, set_as_current=False)
    tasks = [app.task(base=BatchTask, name=name)(same) for name in ("away.many", "away.one")]
    return Contract(*tasks, Settings())


def same(x):
    """Return what came."""
    return x


def told(contract):
    """Return what a contract tells of itself."""
    answer = contract.answer(Ask(method="GET", path="/metrics"))
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return samples(answer.body.decode())


def test_requests_are_counted_by_route_and_status(contract):
    """Each request counts once, under its route's path and the status of its answer."""
    for _ in range(3):
        contract.answer(Ask(method="GET", path="/healthz"))
    contract.answer(Ask(method="POST", path="/predict", body=b"{", headers=JSON))
    found = told(contract)

    assert 3 == found[REQUESTS, "GET", "/healthz", "200"]
    assert 1 == found[REQUESTS, "POST", "/predict", "400"]
    assert 1 == found["celery_batch_web_refused_total", "InvalidInput"]
    assert 3 == found["celery_batch_web_request_duration_seconds_count", "/healthz"]
    assert 1 == found["celery_batch_web_requests_in_flight",]
    assert 0 < found["process_resident_memory_bytes",]


def test_what_a_client_makes_up_is_one_label(contract):
    """Paths and methods that nobody foresaw cannot fill the memory with series."""
    for number in range(50):
        contract.answer(Ask(method="GET", path=f"/made-up-{number}"))
        contract.answer(Ask(method=f"VERB{number}", path="/predict"))
    found = told(contract)

    assert 50 == found[REQUESTS, "unknown", "unknown", "404"]
    assert 50 == found[REQUESTS, "unknown", "unknown", "405"]
    assert 2 == len([name for name, *_ in found if name == REQUESTS])


def test_a_client_that_has_gone_is_counted(contract):
    """A request that is cancelled leaves the count of those in flight, and has a status."""

    async def never(_visit):
        """Give no answer."""
        await asyncio.Event().wait()

    async def hang_up():
        """Ask, and go away."""
        route = contract.routes.find("GET", "/healthz")[0]
        object.__setattr__(route, "view", never)
        request = asyncio.create_task(contract.aanswer(Ask(method="GET", path="/healthz")))
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)

    asyncio.run(hang_up())
    found = told(contract)

    assert 1 == found[REQUESTS, "GET", "/healthz", "499"]
    assert 1 == found["celery_batch_web_requests_in_flight",]


def test_a_bug_is_counted_as_one(contract):
    """What goes wrong here is a 500, and no refusal."""

    async def broken(_visit):
        """Have a bug."""
        raise ArithmeticError

    object.__setattr__(contract.routes.find("GET", "/healthz")[0], "view", broken)
    contract.answer(Ask(method="GET", path="/healthz"))
    found = told(contract)

    assert 1 == found[REQUESTS, "GET", "/healthz", "500"]
    assert "celery_batch_web_refused_total" not in {name for name, *_ in found}


def test_each_has_counts_of_its_own():
    """Two apps in one process do not count each other's requests."""
    one, other = Meters({}), Meters({})
    one.sent("a", 2)
    one.sent("a", 3)
    other.uploaded(7)

    assert 5 == samples(one.render().body.decode())["celery_batch_web_inputs_total", "a"]
    assert 0 == samples(one.render().body.decode())["celery_batch_web_upload_bytes_total",]
    assert 7 == samples(other.render().body.decode())["celery_batch_web_upload_bytes_total",]


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    """The server does not start without a place for its counts."""
    (tmp_path / "file").touch()

    with pytest.raises(ConfigurationError, match=r"PROMETHEUS_MULTIPROC_DIR: .*file/counts"):
        Meters({"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "file" / "counts")})


def test_a_process_that_is_about_to_begin_stops_nobody(tmp_path):
    """A file with nothing in it, yet or for good as its process was killed, is no error."""
    (tmp_path / "counter_1.db").touch()

    assert b"" == Meters({"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}).render().body


@pytest.fixture(scope="module")
def two_processes(servers, tmp_path_factory):
    """Yield gunicorn with two processes, and the folder in which they count."""
    folder = tmp_path_factory.mktemp("shared") / "counts"
    environ = {"GUNICORN_CMD_ARGS": "--workers=2", "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    with servers.door(**environ) as door:
        yield door, folder


def scraped(door):
    """Return what any of a server's processes tells."""
    with urlopen(f"http://127.0.0.1:{door.port}/metrics", timeout=30) as reply:
        return samples(reply.read().decode())


def counting(folder):
    """Return the ids of the processes that have counted something."""
    return {int(file.stem.partition("_")[2]) for file in folder.glob("counter_*.db")}


def test_processes_count_together(two_processes):
    """Whichever process is asked, it tells of the requests of all."""
    door, folder = two_processes

    def why_not_both():
        before = scraped(door)[REQUESTS, "GET", "/healthz", "200"]
        assert 200 == door.ask("GET", "/healthz").status
        assert before + 1 == scraped(door)[REQUESTS, "GET", "/healthz", "200"]
        return "" if len(counting(folder)) > 1 else f"only {counting(folder)} have counted"

    wait_until(why_not_both, [door.child], what="two processes", timeout=60)

    assert 1 == scraped(door)["celery_batch_web_requests_in_flight",]


def test_a_killed_process_is_forgotten(two_processes):
    """What a process had counted stays counted; that it had requests in flight does not."""
    door, folder = two_processes
    found = scraped(door)
    killed = next(pid for pid in counting(folder) if Path(f"/proc/{pid}").exists())
    os.kill(killed, signal.SIGKILL)

    def why_not_forgotten():
        try:
            scraped(door)
        except OSError as error:  # the killed process had accepted it
            return repr(error)
        left = [file.name for file in folder.glob(f"gauge_live*_{killed}.db")]
        return f"{left} is left" if left else ""

    wait_until(why_not_forgotten, [door.child], what="the end of one", timeout=30)
    after, healthy = scraped(door), (REQUESTS, "GET", "/healthz", "200")

    assert 1 == after["celery_batch_web_requests_in_flight",]
    assert after[healthy] == found[healthy]
