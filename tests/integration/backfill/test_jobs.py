"""Running backfills are listed and controlled from elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from celery import Celery
from click.testing import CliRunner

from celery_batch.backfill import control
from celery_batch.backfill.checkpoint import output_status
from celery_batch.backfill.control import Jobs
from celery_batch.cli.jobs import jobs as command_of_jobs
from celery_batch.errors import BackfillError, BackfillStopped
from celery_batch.processes.managed_process import wait_until
from tests.services.eventually import eventually
from tests.services.forked import run
from tests.services.setup import CELERY

#: They take minutes, and no test waits for the last of them.
MANY = 40_000

#: Seconds without an answer after which a paused job has none to come: two steps.
SETTLED = 1.0


@pytest.fixture
def jobs(app, monkeypatch):
    """The app's running backfills."""
    # A job that has obeyed a command cannot be asked again on a busy machine: it may have ended.
    monkeypatch.setattr(control, "_REPLY_TIMEOUT", 30.0)
    with Jobs(app.app) as jobs:
        yield jobs


@pytest.fixture
def running(setup, jobs):
    """A backfill that takes a while, and what it says of itself."""
    setup.write([{"number": n} for n in range(MANY)])
    process = setup.begin("backfill_tasks.leisurely", "--window", "32")

    def why():
        found.extend(jobs.all())
        return "" if found and found[-1]["done"] else f"it says {found[-1:]}"

    found = []
    try:
        wait_until(why, [], what="backfill", timeout=60)
        yield process, found[-1]
    finally:
        process.kill()
        process.wait()


def command(setup, *options):
    """Run `celery batch jobs`."""
    return run([CELERY, "-A", "backfill_tasks", "batch", "jobs", *options], env=setup.env)


def here(app, *options):
    """Run `celery batch jobs` in this process."""
    return CliRunner().invoke(command_of_jobs, options, obj=SimpleNamespace(app=app.app))


def only_job(jobs):
    """Return what the only job says."""

    def report():
        (job,) = jobs.all()
        return job

    return eventually(report)


def settles(jobs):
    """Return how many rows a paused job has, once nothing is on its way any more."""
    job = {}

    def why():
        job.update(only_job(jobs))
        # The step in which it was paused may still send; the next ones find no answers.
        is_settled = not job["pending"] and job["since_answer"] > SETTLED
        return "" if job["state"] == "paused" and is_settled else f"{job}"

    wait_until(why, [], what="backfill", timeout=60)
    return job["done"]


def goes_on(jobs):
    """Return when the only job has more rows than at first."""
    before = only_job(jobs)["done"]
    why = lambda: "" if only_job(jobs)["done"] > before else "it stands"  # noqa: E731
    wait_until(why, [], what="backfill", timeout=60)


def said(app, *options):
    """Return what `celery batch jobs` says, which must be something."""
    done = here(app, *options)
    assert done.stdout, done.stderr
    return done.stdout


def test_a_job_is_listed_paused_and_resumed(app, setup, running, jobs):
    """From another terminal: nothing more is sent, what is on its way is collected, it goes on."""
    process, job = running
    assert (process.pid, "backfill_tasks.leisurely", 1) == (job["pid"], job["task"], job["workers"])
    assert str(setup.out) == job["output"]

    def listed():
        line = command(setup).stdout.split("\n")[1]
        assert [job["id"], "backfill_tasks.leisurely", "running"] == line.split()[:3]

    def paused():
        said = here(app, "pause", job["id"][:3])
        assert f"{job['id']} ({setup.out}) is paused" in said.stdout, said.stderr

    eventually(listed)
    eventually(paused)
    done = settles(jobs)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    assert done == only_job(jobs)["done"]

    eventually(lambda: jobs.control("resume", job["id"]))
    goes_on(jobs)


def test_a_stopped_job_goes_on_later(setup, running, jobs):
    """As after Ctrl-C: what was answered is kept, and the exit code says so."""
    process, job = running
    assert job["id"] == eventually(lambda: jobs.control("stop", job["id"]))["id"]

    assert 130 == process.wait(60)
    assert output_status(setup.out)["rows"] >= job["done"]


def test_a_backfill_in_python_is_listed_paused_and_stopped(app, jobs):
    """It is listed with all others, and its loop ends when it is stopped."""
    ended, answers = [], app.leisurely.backfill(range(MANY), window=32)

    def loop():
        try:
            ended.extend(answer.output for answer in answers)
        except BackfillStopped as error:
            ended.append(error)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    job = only_job(jobs)
    assert (os.getpid(), "backfill_tasks.leisurely") == (job["pid"], job["task"])
    assert (MANY, None) == (job["total"], job["output"])
    assert f"to {Path(sys.argv[0]).name}" in eventually(lambda: said(app))
    eventually(lambda: jobs.control("pause", job["id"]))
    settles(jobs)
    eventually(lambda: jobs.control("resume", job["id"]))
    goes_on(jobs)
    stopped = eventually(lambda: said(app, "stop", job["id"]))
    thread.join(60)

    assert "stops; its loop ends with BackfillStopped." in stopped
    assert isinstance(ended[-1], BackfillStopped)
    assert [2 * n for n in range(len(ended) - 1)] == ended[:-1]
    assert [] == jobs.all()


def test_a_killed_job_is_not_listed(app, running):
    """It does not answer, and nothing is left that says otherwise."""
    process, _ = running
    process.send_signal(signal.SIGKILL)
    process.wait(60)

    listed = here(app, "--json")
    assert (0, []) == (listed.exit_code, json.loads(listed.stdout))


def test_what_has_ended_is_shown_by_its_files(app, setup):
    """Whether it is complete, with how many rows and failures; else how far it has come."""
    setup.write([{"number": n} for n in range(300)])
    assert 1 == setup.run("backfill_tasks.double", "--max-errors", "1").returncode
    (stopped,) = json.loads(said(app, "show", "--json", str(setup.out)))
    in_words = said(app, "show", str(setup.out))
    assert 1 == setup.run("backfill_tasks.double").returncode
    complete = said(app, "show", str(setup.out))
    assert 1 == setup.run("backfill_tasks.double", "--retry-errors").returncode

    assert (str(setup.out), "backfill_tasks.double") == (stopped["output"], stopped["task"])
    assert stopped["failed"] > 1
    assert 113 < stopped["rows"] <= 300
    assert in_words.endswith(
        f": {stopped['rows']} rows of backfill_tasks.double, {stopped['failed']} failed;"
        " unless it is running, the same command continues\n"
    )
    assert f"{setup.out}: complete since " in complete
    assert complete.endswith(": 300 rows of backfill_tasks.double, 3 failed\n")
    assert complete.split(": ")[2] == said(app, "show", str(setup.out)).split(": ")[2]


def test_where_no_backfill_has_written(app, tmp_path):
    """It is said which file is meant, and the command fails."""
    (tmp_path / "mine.jsonl").write_text("{}\n")
    refused = here(app, "show", str(tmp_path / "mine.jsonl"))

    assert 1 == refused.exit_code
    assert f"Error: {tmp_path}/mine.jsonl: no backfill has written there\n" == refused.stderr


def test_what_is_known_of_others_is_shown(app, setup):
    """A file that is no backfill's does not keep those named before it from being shown."""
    setup.write([{"number": 1}])
    setup.run("backfill_tasks.double")
    shown = here(app, "show", str(setup.out), str(setup.folder / "in.jsonl"))

    assert 1 == shown.exit_code
    assert f"{setup.out}: complete since " in shown.stdout


def left_in(setup):
    """Return what the broker has of jobs."""
    client = redis.Redis(unix_socket_path=str(setup.redis.directory / "redis.sock"))
    keys = client.keys("*celery_batch_jobs*")
    return {(key, member) for key in keys for member in client.smembers(key)}


def test_nothing_is_left_of_asking(setup, request):
    """Neither queues of replies nor what jobs say stays in the broker."""
    before = left_in(setup)
    process, _ = request.getfixturevalue("running")
    process.send_signal(signal.SIGINT)

    assert 130 == process.wait(60)
    assert left_in(setup) <= before


@pytest.mark.parametrize("name", ["none", ""])
def test_a_job_that_does_not_run_cannot_be_controlled(jobs, name):
    """The error says which there are."""
    with pytest.raises(BackfillError, match=f"{name}: is no running backfill; there are: none"):
        jobs.control("pause", name)


def test_no_job_is_said_in_words(app):
    """An empty list is no error."""
    listed = here(app)

    assert (0, "") == (listed.exit_code, listed.stdout)
    assert "No backfill is running." in listed.stderr
    refused = here(app, "pause", "abc")
    assert (1, "Error: abc: is no running backfill; there are: none\n") == (
        refused.exit_code,
        refused.stderr,
    )


def test_a_broker_that_is_away_is_an_error():
    """In one line, and not as a trace of calls."""
    away = Celery("away", broker="redis://127.0.0.1:1/0", set_as_current=False)
    refused = here(SimpleNamespace(app=away))

    assert 1 == refused.exit_code
    assert refused.stderr.startswith("Error: the broker cannot be reached: Error 111 connecting")
