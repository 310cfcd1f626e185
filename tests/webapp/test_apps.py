"""What the three web apps answer, each on its server: the same questions to all of them."""

from __future__ import annotations

import http.client
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families
from web_site import MAX_INPUTS, TIMEOUT, environ, error_of

from tests.services.shared_setup import eventually as wait_for

JSON = {"Content-Type": "application/json"}

#: Types and first bytes of forms that go on without end.
STARTS = {
    "/stream": ("application/x-www-form-urlencoded", b"s="),
    "/images": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n',
    ),
}

thorough = pytest.mark.thorough

MIB = 1024 * 1024


def test_predict_answers_in_order(site):
    """One output for each input."""
    response = site.predict("a", "b", "c")

    assert (200, {"outputs": ["A", "B", "C"]}) == (response.status_code, response.json())


@pytest.mark.parametrize("path", ["/stream", "/naive"])
def test_forms_have_a_list(site, path):
    """As service-streamer's example apps answer: the field is repeated, the body is a list."""
    response = site.post(path, data={"s": ["a", "ü", "c d"]})

    assert (200, ["A", "Ü", "C D"]) == (response.status_code, response.json())


def test_images_arrive_as_bytes(site):
    """Each uploaded file is an item."""
    files = [("image", ("a.png", bytes(range(256)))), ("image", ("b", b"x" * 2 * MIB))]
    response = site.post("/images", files=files)

    assert (200, {"outputs": [256, 2 * MIB]}) == (response.status_code, response.json())


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"", JSON),
        (b"{", JSON),
        (b'"inputs"', JSON),
        (b"[]", JSON),
        (b"{}", JSON),
        (b'{"inputs": "a"}', JSON),
        (b'{"inputs": []}', JSON),
        (json.dumps({"inputs": ["a"] * (MAX_INPUTS + 1)}).encode(), JSON),
        (b'{"inputs": ["\xff"]}', JSON),
        (b'{"inputs": [1' + b"0" * 5000 + b"]}", JSON),
        (b'{"inputs": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}", JSON),
        (b"inputs=a", {"Content-Type": "application/x-www-form-urlencoded"}),
        (b'{"inputs": ["a"]}', {}),
    ],
    ids=[
        "empty",
        "cut",
        "text",
        "list",
        "other-field",
        "no-list",
        "no-inputs",
        "too-many",
        "no-utf8",
        "long-number",
        "deep",
        "form",
        "untyped",
    ],
)
def test_what_is_no_list_of_inputs_is_refused(site, body, headers):
    """The client's mistake, told in JSON."""
    response = site.post("/predict", content=body, headers=headers)

    # Django's request.body does not ask for a type.
    is_fine = headers == {} and site.kind.startswith("django")
    assert response.status_code in ({200} if is_fine else {400, 415, 422})
    assert is_fine or error_of(response)["message"]


def test_no_depth_is_an_error_of_the_server(site):
    """JSON that is just shallow enough to be read may be too deep to be sent."""
    statuses = set()
    for depth in range(940, 990):
        body = b'{"inputs": [' + b"[" * depth + b"]" * depth + b"]}"
        statuses.add(site.post("/predict", content=body, headers=JSON).status_code)

    assert statuses == {400, 422}


@pytest.mark.parametrize("path", ["/stream", "/naive", "/images"])
@pytest.mark.parametrize("count", [0, MAX_INPUTS + 1])
def test_forms_have_as_many_inputs(site, path, count):
    """Neither none nor too many."""
    if path == "/images":
        response = site.post(path, files=[("image", ("a", b"a"))] * count)
    else:
        response = site.post(path, data={"s": ["a"] * count})

    assert response.status_code in {400, 422}
    assert error_of(response)["message"]


@pytest.mark.parametrize("value", ["soon", "", "0", "-1", "nan", "inf", "-inf"])
def test_a_time_is_a_number_above_0(site, value):
    """Other values of X-Timeout are mistakes."""
    response = site.predict("a", X_Timeout=value)

    assert response.status_code in {400, 422}
    assert error_of(response)["message"]


def test_a_client_may_be_in_a_hurry(site, workers):
    """Answered with 504 when X-Timeout is over, and a worker runs nothing of it later."""
    text = f"late {site.kind}"
    site.predict("before")  # which connects: that may take longer than a client in a hurry has
    with workers.drained():
        response, took = timed(site.predict, text, f"{text} 2", X_Timeout="1")
    after = site.predict("after")

    assert (504, "DeadlineExceeded") == (response.status_code, error_of(response)["type"])
    assert "Retry-After" in response.headers
    assert 1.0 <= took < TIMEOUT
    assert 200 == after.status_code
    assert not any(each.startswith(text) for each in workers.seen())


def test_a_client_cannot_wait_for_longer_than_the_app(site, workers):
    """X-Timeout is at most WEBAPP_TIMEOUT."""
    with workers.drained():
        response, took = timed(site.predict, "slow", X_Timeout="1e9")

    assert 504 == response.status_code
    assert TIMEOUT <= took < TIMEOUT + 20


def test_an_input_that_the_model_refuses(site):
    """The task's ValueError is the client's, with its words and the input's place."""
    response = site.predict("a", "bad one")
    error = {"type": "ValueError", "message": "'bad one' is no good text", "index": 1}

    assert 422 == response.status_code
    assert error == error_of(response)


@pytest.mark.parametrize("text", ["bad \ud800", "\ud800"], ids=["refused", "answered"])
def test_half_a_character(site, text):
    """A lone surrogate, which JSON allows and UTF-8 does not, is no error of the server."""
    body = json.dumps({"inputs": [text]})
    response = site.post("/predict", content=body, headers=JSON)

    assert response.status_code in {200, 400, 422}


def test_a_model_that_fails(site):
    """The client reads no details; the log has them all."""
    response = site.predict("crash")

    assert 500 == response.status_code
    assert "weights" not in response.text
    wait_for(lambda: "RuntimeError: /srv/private/weights.bin is broken" in site.log, "a traceback")


def test_a_queue_without_room(site):
    """More inputs in one request than `max_queue` is 413, as it never fits; nothing was sent."""
    response = site.predict(*"abcdefg")

    assert (413, "QueueFull") == (response.status_code, error_of(response)["type"])
    assert "Retry-After" not in response.headers


@pytest.mark.parametrize("lost", ["broker", "backend"])
def test_a_redis_that_is_away(kind, open_site, lost):
    """503 well before the deadline; and at once for who asks a moment later."""
    site = open_site(kind, lost)
    site.until("/healthz")
    first, long = timed(site.predict, "a")
    # A busy machine may be slow once; the second is refused without another try.
    (second, short), *_ = sorted(
        (timed(site.predict, "a", "b") for _ in range(3)), key=lambda each: each[1]
    )

    assert (503, 503) == (first.status_code, second.status_code)
    assert f"{lost.title()}Unreachable" == error_of(first)["type"]
    assert "Retry-After" in second.headers
    assert long < TIMEOUT
    assert short < 0.5


@pytest.mark.parametrize("lost", ["broker", "backend"])
@pytest.mark.usefixtures("workers")
def test_tasks_without_a_redis(kind, open_site, lost):
    """What needs the server that is away is 503 in JSON, and soon; the rest works."""
    site = open_site(kind, lost)
    site.until("/healthz" if lost == "broker" else "/readyz")
    statuses = {
        ("POST", "/tasks"): 503,
        ("GET", f"/tasks/{uuid4()}"): 503,
        ("DELETE", f"/tasks/{uuid4()}"): 503,
        ("GET", "/readyz"): 503 if lost == "broker" else 200,  # the worker is there
        ("GET", "/stats"): 503 if lost == "broker" else 200,
        ("GET", "/"): 200,
    }
    seen = {}
    for method, path in statuses:
        body = {"json": {"input": "a"}} if method == "POST" else {}
        response, seconds = timed(site.request, method, path, **body)
        seen[method, path] = response.status_code
        assert seconds < TIMEOUT, path

    assert statuses == seen


def test_a_task_is_followed(site):
    """Sent with 202, and found at its address until it has its output."""
    sent = site.post("/tasks", json={"input": "later"}, headers={"Host": "elsewhere.example"})
    body = sent.json()
    done = eventually(site, body["url"], "SUCCESS")
    too_late = site.delete(body["url"])

    assert (202, body["url"]) == (sent.status_code, sent.headers["Location"])
    assert body["url"] == f"/tasks/{body['id']}"
    assert {"id": body["id"], "state": "SUCCESS", "output": "LATER"} == done == too_late.json()


def test_arrays_are_lists(site):
    """Of a request and of a task that is followed, with null for NaN."""
    predicted = site.predict("vector", "a").json()
    done = eventually(site, sent(site, "vector"), "SUCCESS")

    assert {"outputs": [[1, None], "A"]} == predicted
    assert [1, None] == done["output"]


def test_a_task_that_fails_tells_why(site):
    """A refusal in the model's words, another failure without any."""
    refused = eventually(site, sent(site, "bad"), "FAILURE")
    failed = eventually(site, sent(site, "crash"), "FAILURE")

    assert {"type": "ValueError", "message": "'bad' is no good text"} == refused["error"]
    assert "InternalServerError" == failed["error"]["type"]
    assert "weights" not in str(failed)


def test_a_task_is_revoked(site, workers):
    """What has not begun never runs."""
    text = f"revoked {site.kind}"
    with workers.drained():
        url = sent(site, text)
        waiting = site.get(url).json()
        deleted = site.delete(url)
    revoked = eventually(site, url, "REVOKED")

    assert "PENDING" == waiting["state"]
    assert 200 == deleted.status_code
    assert "TaskRevoked" == revoked["error"]["type"]
    assert text not in workers.seen()


@pytest.mark.parametrize("path", ["/tasks/1", "/tasks/%00", f"/tasks/{'0' * 36}"])
def test_ids_are_uuids(site, path):
    """Nothing else reaches the result store."""
    assert site.get(path).status_code in {404, 422}


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"input"])
def test_a_task_needs_an_input(site, body):
    """The client's mistake, told in JSON."""
    response = site.post("/tasks", content=body, headers=JSON)

    assert response.status_code in {400, 422}
    assert error_of(response)["message"]


def test_events_tell_each_state(site):
    """The last one is that in which the call has ended; FastAPI alone has them."""
    url = sent(site, "told")
    task_id = url.rpartition("/")[2]
    response = site.get(f"/events/{task_id}")
    if site.kind != "fastapi":
        assert 404 == response.status_code
        return

    assert 200 == response.status_code
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert "event: SUCCESS" in response.text


def test_stats_are_for_the_page(site):
    """The names of the tasks, and numbers."""
    site.predict("a")
    names = {
        "task": "web.upper",
        "naive_task": "web.upper_one",
        "image_task": "web.length",
        "examples": [],
    }
    # The web app listens to workers for a moment, in which one on a busy machine may not reply.
    numbers = {"workers": 1, "waiting": 0}
    wait_for(lambda: numbers.items() <= site.get("/stats").json().items(), f"{numbers}")
    stats = site.get("/stats").json()

    assert names.items() <= stats.items()
    assert stats["items_per_second"] >= 0
    assert {"items_per_second", "mean_batch_size"} <= stats.keys()


def test_probes(site, workers):
    """The process lives all the time, and is ready while a worker serves the task."""
    alive, ready = site.get("/healthz"), site.get("/readyz")
    with workers.drained():
        drained = site.until("/readyz", 503)
        still_alive = site.get("/healthz")
    site.until("/readyz")

    assert (200, {"ok": True}) == (alive.status_code, alive.json())
    assert (200, {"ready": True, "reasons": {}}) == (ready.status_code, ready.json())
    assert drained.json()["ready"] is False
    assert {"web.upper"} == drained.json()["reasons"].keys()
    assert 200 == still_alive.status_code


def test_metrics_are_prometheus(site):
    """In Prometheus' format; neither ids nor unknown paths make series of their own."""
    paths = [f"/tasks/{uuid4()}", f"/{uuid4()}", f"/static/{uuid4()}"]
    for path in ("/healthz", *paths):
        site.get(path)
    response = site.get("/metrics")
    families = {each.name for each in text_string_to_metric_families(response.text)}

    assert 200 == response.status_code
    assert any("http_request" in name for name in families)
    assert not any(path in response.text for path in paths)


def test_the_page(site):
    """HTML, which loads nothing from elsewhere; its files are under /static."""
    page = site.get("/")
    static = site.get("/static/index.html")

    assert (200, 200) == (page.status_code, static.status_code)
    assert page.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert page.content == static.content


@pytest.mark.parametrize(
    "path",
    [
        "/static/../tasks.py",
        "/static/%2e%2e/tasks.py",
        "/static/..%2ftasks.py",
        "/static/..%5ctasks.py",
        "/static//etc/passwd",
        "/static/%2fetc/passwd",
        "/static/index.html%00",
        "/static/missing.js",
        "/static/",
        "//etc/passwd",
    ],
)
def test_only_the_pages_files_are_served(site, path):
    """Neither what is beside the folder nor a list of what is in it."""
    connection = http.client.HTTPConnection(site.url.removeprefix("http://"), timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    connection.close()

    assert response.status in {308, 400, 404}
    assert b"WEBAPP_TASK" not in body
    assert b"root:" not in body


@pytest.mark.parametrize("path", ["/nothing", "/predict/more", "/admin/login"])
def test_unknown_paths(site, path):
    """404, in JSON."""
    response = site.get(path)

    assert 404 == response.status_code
    assert error_of(response)["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", path) for path in ("/predict", "/stream", "/naive", "/images", "/tasks")),
        *(("POST", path) for path in ("/", "/healthz", "/stats", f"/tasks/{UUID(int=1)}")),
        ("PUT", "/predict"),
        ("TRACE", "/predict"),
    ],
)
def test_wrong_methods(site, method, path):
    """405, with the methods that are right."""
    response = site.request(method, path)

    assert 405 == response.status_code
    assert response.headers["Allow"]


@pytest.mark.parametrize("path", ["/", "/healthz", "/predict", "/static/index.html"])
def test_heads_and_options(site, path):
    """Whether allowed or not, they are no error of the server, and a HEAD has no body."""
    head, options = site.head(path), site.options(path)

    assert {head.status_code, options.status_code} <= {200, 204, 405}
    assert b"" == head.content


@pytest.mark.parametrize("path", ["/predict", "/stream", "/images", "/tasks"])
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_bodies_are_bounded(site, path, framing):
    """A body that is too large is refused, at the latest when too much of it has come."""
    status, sent = upload(site, path, 64, framing)
    after = site.predict("a")

    assert status in {400, 413, 422}
    assert sent < 64 or site.kind == "django-asgi"  # which has it on the disk before a view
    assert 200 == after.status_code


def test_a_form_in_chunks_is_not_cut(site):
    """A form that is too large is refused, though what comes first is a whole field."""
    status, _ = upload(site, "/stream", 64, "chunks", b"s=a&x=")

    assert status in {400, 413}


def test_an_image_that_is_too_large(site):
    """Refused, though the whole body may be larger."""
    response = site.post("/images", files=[("image", ("a", bytes(11 * MIB)))])

    assert response.status_code in {400, 413}
    assert error_of(response)["message"]


@pytest.mark.parametrize(
    "kind",
    ["fastapi", pytest.param("django-asgi", marks=thorough("web apps on their other servers"))],
)
def test_a_client_that_goes(site, workers):
    """Where a server tells of it, what the client has asked for is revoked and never runs."""
    text = f"left by a client of {site.kind}"
    body = json.dumps({"inputs": [text]})
    before = len(workers.revoked())
    with workers.drained():
        connection = http.client.HTTPConnection(site.url.removeprefix("http://"))
        connection.request("POST", "/predict", body, JSON)
        wait_for(workers.waiting, "a call")
        connection.close()
        wait_for(lambda: len(workers.revoked()) > before, "a revoke", timeout=TIMEOUT)
    site.predict("after")

    assert text not in workers.seen()


@pytest.mark.usefixtures("workers")
def test_tasks_that_are_not_configured(kind, open_site):
    """An empty WEBAPP_NAIVE_TASK or WEBAPP_IMAGE_TASK is no route, and the page is told."""
    site = open_site(kind, "backend")
    site.until("/healthz")
    naive = site.post("/naive", data={"s": "a"})
    images = site.post("/images", files={"image": b"a"})
    stats = site.get("/stats").json()

    assert (404, 404) == (naive.status_code, images.status_code)
    assert {"task": "web.upper", "naive_task": None, "image_task": None}.items() <= stats.items()


def test_the_django_site_can_be_deployed():
    """Django's own checks find nothing."""
    command = [sys.executable, "-m", "webapp.django_site.manage", "check", "--deploy"]
    done = subprocess.run(
        [*command, "--fail-level=WARNING"],
        env=environ("redis://"),
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == done.returncode, done.stderr


def upload(
    site: Any, path: str, blocks: int, framing: str, start: bytes | None = None
) -> tuple[int, int]:
    """Send MiBs until there is an answer; return its status, and how many were sent."""
    connection = http.client.HTTPConnection(site.url.removeprefix("http://"), timeout=30)
    content_type, usual = STARTS.get(path, ("application/json", b'{"inputs": ["'))
    start = usual if start is None else start
    headers = {"Content-Type": content_type, "Transfer-Encoding": "chunked"}
    if framing == "length":
        headers = {"Content-Type": content_type, "Content-Length": str(len(start) + blocks * MIB)}
    sent = 0

    def body() -> Iterator[bytes]:
        """Stop where there is an answer already."""
        nonlocal sent
        yield start
        while sent < blocks and not select.select([connection.sock], [], [], 0)[0]:
            yield b"a" * MIB
            sent += 1

    try:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", path, body(), headers, encode_chunked=framing == "chunks")
        return connection.getresponse().status, sent
    finally:
        connection.close()


def timed(ask: Any, *values: Any, **options: Any) -> tuple[Any, float]:
    """Return an answer, and the seconds that it took."""
    began = time.monotonic()
    answer = ask(*values, **options)
    return answer, time.monotonic() - began


def eventually(site: Any, url: str, state: str) -> dict[str, Any]:
    """Return a task's status when it has this state."""
    wait_for(lambda: site.get(url).json()["state"] == state, state)
    return site.get(url).json()


def sent(site: Any, text: str) -> str:
    """Send a call; return its address."""
    return site.post("/tasks", json={"input": text}).json()["url"]
