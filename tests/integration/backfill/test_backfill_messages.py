"""What ``celery batch backfill`` prints to a new user, and to one who runs it again."""

from __future__ import annotations

import signal

import redis

from celery_batch.backfill.sender import unserved
from celery_batch.processes.managed_process import wait_until
from tests.services.forked import begin


def rows(number):
    """Return records with a name and a number each."""
    return [{"id": f"r{n}", "number": n} for n in range(number)]


def test_a_queue_without_workers_is_named(app):
    """Where no worker reads the queue it is said how to start one; else nothing is."""
    words = unserved(app.double, {"queue": "unread"})

    wanted = "No worker answers for backfill_tasks.double: none reads its queue 'unread'"
    assert words.startswith(wanted)
    assert words.endswith("; start one with celery -A backfill_tasks worker -Q unread")
    wait_until(lambda: unserved(app.double, {}), [], what="worker", timeout=60)


def test_a_command_without_workers_says_so(setup):
    """Once, and soon; the rest goes on waiting."""
    setup.write(rows(3))
    errors = setup.folder / "errors"
    with errors.open("w") as file:
        command = setup.command("backfill_tasks.double", "--queue", "unread")
        process = begin(command, env=setup.env, errors=file)
    try:
        why = lambda: "" if "No worker answers for" in errors.read_text() else "silent"  # noqa: E731
        wait_until(why, [], what="command", timeout=60)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert "Stopping ...\nInterrupted; the same command continues" in errors.read_text()
    client = redis.Redis(unix_socket_path=str(setup.redis.directory / "redis.sock"))
    client.delete("unread")


def test_a_backfill_goes_on_as_it_was_begun(setup):
    """Another field, key or format would mix what rows mean: refused with both values."""
    records = [{"id": f"r{n}", "number": 13, "other": n} for n in range(200)]
    setup.write(records)
    begun = ("backfill_tasks.double", "--field", "number")
    assert "more than --max-errors" in setup.run(*begun, "--max-errors", "3").stderr
    other = setup.run("backfill_tasks.double", "--field", "other")
    unnamed = setup.run(*begun, "--key", "other")

    assert (1, 1) == (other.returncode, unnamed.returncode)
    assert "--field was number then, and is other now; use --restart" in other.stderr
    assert "--key was not given then, and is other now" in unnamed.stderr
    assert 1 == setup.run(*begun).returncode
    retried = setup.run("backfill_tasks.double", "--retry-errors")
    assert "--field was number then, and is not given now; give the same" in retried.stderr
    assert 200 == len(setup.answers())


def test_a_complete_output_with_failed_rows_exits_with_1(setup):
    """The same command again counts them; another one is refused, with what differs."""
    setup.write(rows(20))
    assert 1 == setup.run("backfill_tasks.double").returncode
    before = setup.answers()
    again = setup.run("backfill_tasks.double")

    words = f"{setup.out}: is complete already; --retry-errors runs its 1 failed row again\n"
    assert (1, True) == (again.returncode, again.stderr.endswith(words)), again.stderr
    anew = "use --restart to start anew, or name another output"
    task = "TASK was backfill_tasks.double then, and is backfill_tasks.echo now"
    field = "--field was not given then, and is number now"
    for options, changed in (
        (("backfill_tasks.echo",), task),
        (("backfill_tasks.double", "--field", "number"), field),
    ):
        other = setup.run(*options)
        assert (1, before) == (other.returncode, setup.answers())
        assert other.stderr.endswith(f"is complete already, but {changed}; {anew}\n")


def test_a_complete_output_without_failed_rows_exits_with_0(setup):
    """A job that runs the same command again succeeds, once no row has failed."""
    setup.write(rows(10))
    assert 0 == setup.run("backfill_tasks.double").returncode
    again = setup.run("backfill_tasks.double")

    assert 0 == again.returncode
    assert again.stderr.endswith(f"{setup.out}: is complete already\n")


def test_a_mended_input_of_what_is_complete_is_said(setup):
    """Its failed rows may run again: it is the same backfill but for the input."""
    setup.write(rows(20))
    setup.run("backfill_tasks.double")
    setup.write(rows(21))
    other = setup.run("backfill_tasks.double")

    assert 1 == other.returncode
    assert "is complete already, but the input has changed since; use --restart" in other.stderr
    assert other.stderr.endswith("; --retry-errors runs its 1 failed row again\n")


def test_a_model_that_fails_is_seen_at_once(setup):
    """The first error is on the terminal, with the line of the file and what helps."""
    (setup.folder / "in.jsonl").write_text('\n{"id": "r0", "n": 1}\n{"id": "r1", "n": 2}\n')
    done = setup.run("backfill_tasks.double")

    assert 1 == done.returncode
    assert "Line 2 (r0) failed: TypeError: " in done.stderr
    assert "The record has the fields id, n, and the model got all of it; --field n" in done.stderr


def test_parquet_without_its_library_is_refused_at_once(setup):
    """Before anything is asked, with what to install."""
    setup.write(rows(3))
    (setup.folder / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    setup.env = {**setup.env, "PYTHONPATH": f"{setup.folder}:{setup.env['PYTHONPATH']}"}
    done = setup.run("backfill_tasks.double", "--output", str(setup.folder / "out.parquet"))

    assert 1 == done.returncode
    assert "needs pyarrow: pip install 'celery-batch[parquet]'" in done.stderr
    assert not list(setup.folder.glob("out.*"))
