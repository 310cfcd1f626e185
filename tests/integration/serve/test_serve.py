"""One handle that is served over HTTP, and everything that may happen to it."""

from __future__ import annotations

import json
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from uuid import uuid4

import redis
from kombu import pools

from celery_batch.serve.app import make_app
from celery_batch.serve.config import ServeConfig
from tests.integration.serve.conftest import Serving


def _folder(serving: Serving) -> Path:
    return serving.run.parent


def _held(serving: Serving, name: str) -> str:
    return "" if (_folder(serving) / f"{name}.held").exists() else "the model is not held yet"


def test_status_says_what_the_ready_line_says(serving):
    """Once it has said that it is ready, every process runs."""
    _title, _heads, *lines = serving.first_status

    assert {"running"} == {line.split()[2] for line in lines}


def test_an_envelope_goes_through_the_handle_and_comes_back(serving):
    """The handle gets the task's id and what was posted, and what it returns is the answer."""
    status, answer = serving.post({"name": "one"})

    assert 200 == status
    assert {"task_id", "task_info"} == set(answer)
    assert "one" == answer["task_info"]["name"]
    assert 36 == len(answer["task_id"])


def test_requests_go_through_forward_together(serving):
    """Requests that come while the model is busy make one batch."""
    name = uuid4().hex
    first = serving.asking({"name": "first", "hold": name})
    serving.until(lambda: _held(serving, name))
    others = [serving.asking({"name": str(number)}) for number in range(12)]
    serving.until(lambda: "" if _asked(serving, "batch_status") > 1 else "not two wait yet")
    (_folder(serving) / name).touch()

    answers = [each.result()[1]["task_info"] for each in [first, *others]]

    assert ["first", *map(str, range(12))] == [answer["name"] for answer in answers]
    assert max(answer["result"]["size"] for answer in answers) > 1


def test_many_requests_wait_at_once_and_block_no_other(serving):
    """While the model is held and all clients wait, the web server answers others at once."""
    name = uuid4().hex
    waiting = [serving.asking({"name": str(n), "hold": name}) for n in range(60)]
    serving.until(lambda: _held(serving, name))

    assert (200, {"status": "ok"}) == serving.get("/healthz")
    assert 400 == serving.post(b"{")[0]
    assert not any(each.done() for each in waiting)
    (_folder(serving) / name).touch()
    assert {200} == {each.result()[0] for each in waiting}


def test_nothing_is_polled_while_a_request_waits(serving):
    """A second of waiting costs Redis a look or two, not fifty."""
    name = uuid4().hex
    waiting = serving.asking({"name": "patient", "hold": name})
    serving.until(lambda: _held(serving, name))
    with redis.Redis(unix_socket_path=str(serving.run / "redis/redis.sock")) as client:
        before, began = _poll_schedule(client), time.monotonic()
        serving.until(lambda: "" if time.monotonic() > began + 1 else "a second has not passed")
        looks, took = _poll_schedule(client) - before, time.monotonic() - began
    (_folder(serving) / name).touch()

    assert 200 == waiting.result()[0]
    assert looks < 15 * took


def _poll_schedule(client):
    statistics = client.info("commandstats")
    return sum(statistics.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("get", "mget"))


def test_an_error_is_its_requests_alone_and_kills_no_process(serving):
    """Errors in any step reach their clients; the others of the batch have their answers."""
    name = uuid4().hex
    first = serving.asking({"name": "first", "hold": name})
    serving.until(lambda: _held(serving, name))
    bad = [
        serving.asking({"name": step, "raise": step})
        for step in ("preprocess", "forward", "postprocess")
    ]
    good = [serving.asking({"name": str(number)}) for number in range(3)]
    (_folder(serving) / name).touch()

    pid = first.result()[1]["task_info"]["result"]["pid"]
    for each in bad:
        status, answer = each.result()
        assert 422 == status
        assert "does not like" in answer["error"]["message"]
    assert {(200, pid)} == {
        (status, answer["task_info"]["result"]["pid"])
        for status, answer in (each.result() for each in good)
    }


def test_a_bug_in_a_handle_is_for_the_operator(serving):
    """The response to an unexpected error names the task to look for, and not its message."""
    status, answer = serving.post({"name": "bug", "crash": "forward"})

    assert (500, "InternalServerError") == (status, answer["error"]["type"])
    assert "secret" not in answer["error"]["message"]
    for log, words in (("cpu-0.log", "RuntimeError: a secret"), ("web.log", answer["task_id"])):
        path = serving.run / log
        serving.until(lambda: "" if words in path.read_text() else "it is not logged")  # noqa: B023


def test_a_client_that_goes_is_not_served(serving):
    """What it has asked for is revoked; the handle never sees it."""
    name = uuid4().hex
    first = serving.asking({"name": "first", "hold": name})
    serving.until(lambda: _held(serving, name))
    with closing(HTTPConnection("127.0.0.1", serving.port)) as leaving:
        leaving.request("POST", "/predict", json.dumps({"name": "gone", "hold": f"{name}.gone"}))
        serving.until(lambda: "" if _asked(serving, "batch_status") else "nothing waits yet")
    serving.until(lambda: "" if _asked(serving, "revoked") else "nothing is revoked yet")
    (_folder(serving) / name).touch()

    assert 200 == first.result()[0]
    assert 200 == serving.post({"name": "next"})[0]
    assert not (_folder(serving) / f"{name}.gone.held").exists()


def _asked(serving, command):
    """Return how many requests wait in the worker, or which are revoked."""
    config = ServeConfig.from_json((serving.run / "serve.json").read_text())
    with make_app(config) as app:
        (reply,) = app.control.broadcast(command, reply=True, timeout=60, limit=1)
        # The next test may kill Redis, and kombu keeps connections for apps with the same URL.
        broker = app.connection_for_write()
        for group in (pools.producers, pools.connections):
            group[broker].force_close_all()
            del group[broker]
    (answer,) = reply.values()
    return answer[config.task_name]["waiting"] if command == "batch_status" else answer


def test_what_is_no_json_object_is_refused(serving):
    """Malformed JSON is a 400 that says why, and so is JSON of another kind."""
    bodies = (b"", b"{", b"[1]", b"\xff")
    large = (b"[" * 100_000, b"[" + b"1," * 50_000 + b"1]", b'{"x": "' + b"\xff" * 100_000 + b'"}')
    for body in bodies + large:
        status, answer = serving.post(body)
        assert 400 == status
        assert "the body" in answer["error"]["message"]


def test_a_large_object_is_served_as_a_small_one(serving):
    """What the web server has not looked into comes to the handle as an object, too."""
    numbers = [n / 8 for n in range(50_000)]
    status, answer = serving.post({"name": "ü", "numbers": numbers})

    assert 200 == status
    assert ("ü", numbers) == (answer["task_info"]["name"], answer["task_info"]["numbers"])
    assert {"task_id", "task_info"} == set(answer)


def test_a_request_survives_the_death_of_its_model_process(serving):
    """The next process serves the request that it held; the status counts it, and says why."""
    before = serving.process("cpu-0").restarts
    status, answer = serving.post({"name": "deadly", "die": uuid4().hex})
    serving.until(lambda: "" if serving.process("cpu-0").restarts > before else "not counted yet")
    (line,) = (line for line in serving.status() if line.startswith("cpu-0"))

    assert (200, "deadly") == (status, answer["task_info"]["name"])
    assert before + 1 == serving.process("cpu-0").restarts
    assert line.endswith("pool process: signal 9 (SIGKILL)")


def test_a_killed_worker_is_back_and_its_requests_are_answered(serving):
    """What a worker held when it was killed is served when it is back."""
    name = uuid4().hex
    waiting = [serving.asking({"name": str(n), "hold": name}) for n in range(5)]
    serving.until(lambda: _held(serving, name))
    serving.kill("cpu-0")
    (_folder(serving) / name).touch()

    assert {200} == {each.result()[0] for each in waiting}


def test_a_killed_web_server_is_back(serving):
    """Clients that come after it was killed are served."""
    serving.kill("web")
    serving.until(lambda: _why_not_served(serving))

    assert 200 == serving.post({"name": "again"})[0]


def test_a_killed_redis_is_back(serving):
    """Requests that wait in it are served when it is back, and so are later ones."""
    name = uuid4().hex
    waiting = [serving.asking({"name": str(n), "hold": name}) for n in range(3)]
    serving.until(lambda: _held(serving, name))
    serving.kill("redis")
    (_folder(serving) / name).touch()

    assert {200} == {each.result()[0] for each in waiting}
    assert 200 == serving.post({"name": "later"})[0]


def _line_of_worker(serving):
    (line,) = (line for line in serving.status() if line.startswith("cpu-0"))
    return line


def _why_no_loop(line):
    # From its second early end on it stays so; after the first it is "starting" once more.
    in_loop = line.split()[2] == "crashing" and "the weights are broken" in line
    return "" if in_loop else line


def _why_not_served(serving):
    try:
        return "" if serving.get("/readyz")[0] == 200 else "not ready"
    except OSError as error:
        return str(error)


def test_a_crash_loop_shows_in_the_status(serving):
    """A worker whose handle cannot be loaded is tried again, and seen to fail; then it recovers."""
    broken = _folder(serving) / "broken"
    broken.touch()
    try:
        serving.kill("cpu-0")
        serving.until(lambda: _why_no_loop(_line_of_worker(serving)))
        _title, heads, *_lines = serving.status()
    finally:
        broken.unlink()

    assert ["program", "device", "state", "since", "restarts", "last", "error"] == heads.split()
    assert serving.process("cpu-0").restarts > 0
    serving.until(lambda: _why_not_served(serving))
    assert 200 == serving.post({"name": "recovered"})[0]
