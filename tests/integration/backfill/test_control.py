"""A job answers for itself, on whatever broker, and whatever the broker goes through."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_batch.backfill.control import JobControl, Jobs
from celery_batch.backfill.progress import Clock, Progress
from celery_batch.errors import BackfillError, BackfillStopped
from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.eventually import eventually

FILES = ("in.jsonl", Path("out.jsonl"))


def app_on(url):
    """Return an app on a broker."""
    return Celery("jobs", broker=url, set_as_current=False)


@pytest.fixture(params=["redis_server", "rabbitmq_server"], ids=["redis", "rabbitmq"])
def broker(request):
    """The URL of each broker in turn."""
    return request.getfixturevalue(request.param).url


def listed(app, number=1):
    """Return what so many jobs say, once they are there."""
    found = []

    def why():
        with Jobs(app, timeout=0.5) as jobs:
            found[:] = jobs.all()
        return "" if len(found) == number else f"{found}"

    wait_until(why, [], what="jobs", timeout=60)
    return found


def send(broker, command, name):
    """Send a job a command, and return its report."""
    with Jobs(app_on(broker), timeout=0.3) as jobs:
        return eventually(lambda: jobs.control(command, name))


def test_a_job_is_listed_and_controlled(broker):
    """On Redis as on RabbitMQ it says how far it is, and obeys commands."""
    with JobControl(app_on(broker), "double", *FILES) as control:
        control.progress = Progress(done=5, total=10, rate=2.5, window=4)
        (job,) = listed(app_on(broker))

        assert {"task": "double", "done": 5, "left": 2.0, "state": "running"}.items() <= job.items()
        assert "paused" == send(broker, "pause", job["id"])["state"]
        assert control.is_paused
        control.progress = Progress(done=5, total=10, state="paused")
        assert "running" == send(broker, "resume", job["id"][:2])["state"]
        assert "stopping" == send(broker, "stop", job["id"])["state"]
        with pytest.raises(BackfillStopped):
            next(control.steps(SimpleNamespace(is_over=False), Clock(None), len))

    with Jobs(app_on(broker)) as jobs:
        assert [] == jobs.all()


def test_jobs_have_names_of_their_own(broker):
    """Each has an id of its own, made from its output; an unknown one is not guessed."""
    outputs = [Path(f"{n}.jsonl") for n in range(2)]
    first, second = (JobControl(app_on(broker), "double", "in.jsonl", output) for output in outputs)
    with first, second:
        found = listed(app_on(broker), 2)

        assert [first.id, second.id] == [job["id"] for job in found]
        assert first.id == JobControl(None, "double", "in.jsonl", outputs[0]).id
        with (
            Jobs(app_on(broker)) as jobs,
            pytest.raises(BackfillError, match="no running backfill; there are: "),
        ):
            jobs.control("stop", "zz")


def test_a_paused_job_stays_so_while_the_broker_restarts(tmp_path_factory):
    """The job itself knows that it is paused, and connects again."""
    with (
        RedisServer(tmp_path_factory.mktemp("r")) as server,
        JobControl(app_on(server.url), "double", *FILES),
    ):
        (job,) = listed(app_on(server.url))
        send(server.url, "pause", job["id"])
        server.stop()
        server.start()

        (again,) = listed(app_on(server.url))
        assert (job["id"], "paused") == (again["id"], again["state"])


def test_a_broker_that_is_away_does_not_keep_a_job():
    """Neither its beginning nor its end waits for the broker."""
    with JobControl(app_on("redis://127.0.0.1:1/0"), "double", *FILES) as control:
        control.progress = Progress(done=1)

    wait_until(lambda: "alive" * control._thread.is_alive(), [], what="thread", timeout=30)
