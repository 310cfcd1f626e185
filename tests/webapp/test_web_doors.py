"""Every door with a real worker behind it, asked over real HTTP: the same answers from all."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from web_door import COMMANDS, FORM, JSON, KINDS

MULTIPART = (
    b'--x\r\nContent-Disposition: form-data; name="s"\r\n\r\nsay lamb [MASK]\r\n'
    b'--x\r\nContent-Disposition: form-data; name="s"\r\n\r\nsay star [MASK]\r\n--x--\r\n'
)


def test_predict_answers_in_order(door):
    """As many outputs as inputs come back, in the order of the inputs, and no errors."""
    words = [f"word{number}" for number in range(50)]
    reply = door.predict(*[f"say {word} [MASK]" for word in words])

    assert (200, {"outputs": words}) == (reply.status, reply.body)


@pytest.mark.parametrize("path", ["/stream", "/naive"])
def test_a_form_is_answered_with_a_list(door, path):
    """The repeated form field comes back as a JSON list, as the tutorial's clients expect."""
    reply = door.form(path, "say lamb [MASK]", "say star [MASK]")

    assert (200, ["lamb", "star"]) == (reply.status, reply.body)


def test_a_multipart_form_is_a_form(door):
    """The other encoding of a form means the same."""
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    reply = door.ask("POST", "/stream", MULTIPART, headers)

    assert (200, ["lamb", "star"]) == (reply.status, reply.body)


def test_a_bad_input_leaves_the_others_their_outputs(door):
    """An input that fails has its error under its index; the others have their outputs."""
    reply = door.predict("say lamb [MASK]", "no mask", "say star [MASK]")

    assert 200 == reply.status
    assert ["lamb", None, "star"] == reply.body["outputs"]
    assert {"1": {"type": "ValueError", "message": "no [MASK] in 'no mask'"}} == reply.body[
        "errors"
    ]


@pytest.mark.parametrize("path", ["/stream", "/naive"])
def test_a_bad_input_keeps_its_place_in_the_list(door, path):
    """In a list, the place of an input that failed holds its error."""
    reply = door.form(path, "no mask", "say star [MASK]")
    error = {"type": "ValueError", "message": "no [MASK] in 'no mask'"}

    assert (200, [{"error": error}, "star"]) == (reply.status, reply.body)


def test_a_request_of_bad_inputs_only_is_unprocessable(door):
    """Where no input has an output the request has failed, and says for each why."""
    reply = door.predict("one", "two")

    assert (422, "ValueError") == (reply.status, reply.error)
    assert ["0", "1"] == sorted(reply.body["errors"])
    assert 422 == door.form("/stream", "one").status


def test_the_gravest_failure_gives_the_status(door):
    """A crash of the model is not called the client's mistake."""
    reply = door.predict("no mask", "crash now")

    assert (500, "ModelError") == (reply.status, reply.error)
    assert "ValueError" == reply.body["errors"]["0"]["type"]


def test_internal_details_stay_inside(door):
    """Neither the message nor the trace of a crash reaches the client."""
    reply = door.predict("say lamb [MASK]", "crash now")
    told = json.dumps(reply.body)

    assert "ModelError" == reply.body["errors"]["1"]["type"]
    assert not [word for word in ("/srv", "RuntimeError", "Traceback", ".py") if word in told]


@pytest.mark.parametrize(
    ("asked", "status", "kind"),
    [
        (("POST", "/predict", b"{", JSON), 400, "InvalidInput"),
        (("POST", "/predict", b'{"inputs": []}', JSON), 400, "InvalidInput"),
        (("POST", "/predict", b'{"inputs": [3]}', JSON), 400, "InvalidInput"),
        (("POST", "/predict", b"[" * 10**6, JSON), 400, "InvalidInput"),
        (("POST", "/predict", json.dumps({"inputs": ["a"] * 257}), JSON), 413, "TooLarge"),
        (("POST", "/predict", json.dumps({"inputs": ["a" * 10_001]}), JSON), 413, "TooLarge"),
        (("POST", "/predict", b" " * (1024 * 1024 + 1), JSON), 413, "TooLarge"),
        (("POST", "/predict", b"s=a", FORM), 415, "UnsupportedMediaType"),
        (("POST", "/predict", b"{}", {}), 415, "UnsupportedMediaType"),
        (("POST", "/stream", b"", FORM), 400, "InvalidInput"),
        (("POST", "/stream", b"text=a", FORM), 400, "InvalidInput"),
        (("POST", "/naive", b"s=+", FORM), 400, "InvalidInput"),
        (("POST", "/naive", b"s=a&" * 257, FORM), 413, "TooLarge"),
        (("POST", "/naive", b"s=" + b"a" * 1024 * 1024, FORM), 413, "TooLarge"),
        (("POST", "/stream", b"{}", JSON), 415, "UnsupportedMediaType"),
        (("GET", "/predict", None, {}), 405, "MethodNotAllowed"),
        (("POST", "/healthz", None, {}), 405, "MethodNotAllowed"),
        (("GET", "/nowhere", None, {}), 404, "NotFound"),
        (("GET", "//predict", None, {}), 404, "NotFound"),
        (("GET", "/%C3%BC%FF", None, {}), 404, "NotFound"),
        (("PUT", "/nowhere", b"a" * 99, {}), 404, "NotFound"),
        (("POST", "/predict/", b"{}", JSON), 404, "NotFound"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(door, asked, status, kind):
    """Whatever is wrong, the answer is JSON with the fitting status and a message."""
    reply = door.ask(*asked)

    assert (status, kind) == (reply.status, reply.error)
    assert "application/json" == reply.headers["Content-Type"]
    assert reply.body["error"]["message"]


def test_a_wrong_method_is_told_the_right_one(door):
    """The answer to a wrong method lists those that are allowed."""
    assert "POST" in door.ask("GET", "/predict").headers["Allow"]


@pytest.mark.parametrize(
    ("path", "kind", "start"),
    [
        ("/predict", b"application/json", b'{"inputs": ["say lamb [MASK]"]}'),
        ("/stream", b"application/x-www-form-urlencoded", b"s=say+lamb+[MASK]&x="),
    ],
)
def test_a_body_of_unknown_length_is_refused_at_the_limit(door, path, kind, start):
    """A body sent in chunks is not read beyond the limit, and not answered in part."""
    body = start.ljust(1024 * 1024 + 1024)  # gunicorn reads ahead by so much
    with socket.create_connection(("127.0.0.1", door.port), timeout=10) as client:
        client.sendall(
            b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: %s\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
            % (path.encode(), kind)
            + b"%x\r\n%s\r\n10\r\n" % (len(body), body)
        )
        # The rest of the body is never sent.
        answer = b""
        while b'"TooLarge"' not in answer:
            more = client.recv(4096)
            assert more, answer
            answer += more

    assert answer.startswith(b"HTTP/1.1 413 ")


def test_healthz_says_that_the_process_lives(door):
    """The liveness probe depends on nothing else."""
    reply = door.ask("GET", "/healthz")

    assert (200, {"status": "ok"}) == (reply.status, reply.body)


def test_readyz_names_the_workers(door):
    """The readiness probe says who is ready for which task."""
    reply = door.ask("GET", "/readyz")

    assert (200, "ready") == (reply.status, reply.body["status"])
    assert {"standin.answer", "standin.answer_one"} == reply.body["workers"].keys()
    assert all(
        name.startswith("worker") for names in reply.body["workers"].values() for name in names
    )


def test_many_clients_each_get_their_own_answers(door):
    """With 64 clients at once, nobody gets another's outputs and nobody waits in vain."""
    asked = [(f"a{number}", f"b{number}") for number in range(128)]

    with ThreadPoolExecutor(64) as clients:
        replies = clients.map(lambda pair: door.predict(*[f"say {w} [MASK]" for w in pair]), asked)
        outputs = [reply.body.get("outputs", reply.body) for reply in replies]

    assert [list(pair) for pair in asked] == outputs


def test_head_is_get_without_its_body(door):
    """Whoever asks for the head alone gets the head of the same answer."""
    get, head = door.ask("GET", "/healthz"), door.ask("HEAD", "/healthz")

    assert (200, None) == (head.status, head.body)
    assert get.headers["Content-Length"] == head.headers["Content-Length"]


@pytest.mark.parametrize("kind", ["django-asgi", "fastapi"])
def test_an_app_may_have_its_place_below_a_path(servers, kind):
    """Where a server says below which path it is, that is no part of any route."""
    with servers.door(kind, options=("--root-path=/model",)) as door:
        known = door.post("/predict", {"inputs": []})
        unknown = door.ask("GET", "/model")

    assert (400, "InvalidInput") == (known.status, known.error)
    assert (404, "NotFound") == (unknown.status, unknown.error)


@pytest.mark.parametrize("kind", KINDS)
def test_the_urls_of_tasks_begin_where_the_app_is(servers, kind):
    """What a server, or a proxy that is trusted, says of the path before ours is told on."""
    is_wsgi = "uvicorn" not in COMMANDS[kind]
    options = () if is_wsgi else ("--root-path=/model",)
    environ = {"SCRIPT_NAME": "/model"} if is_wsgi else {}
    with servers.door(
        kind,
        ready="/model/healthz" if is_wsgi else "/healthz",
        options=options,
        STANDIN_QUEUE="nobody",
        WEBAPP_TRUSTED_PROXIES="127.0.0.1",
        **environ,
    ) as door:
        ours = "/model" if is_wsgi else ""
        sent = door.post(f"{ours}/tasks", {"input": "say lamb [MASK]"})
        url = sent.headers["Location"]
        news = door.ask("GET", ours + url.removeprefix("/model"))
        behind = door.post(
            f"{ours}/tasks", {"input": "say lamb [MASK]"}, X_Forwarded_Prefix="/front"
        )

    assert (202, f"/model/tasks/{sent.body['id']}", url) == (sent.status, url, sent.body["url"])
    assert f"/model/events/{sent.body['id']}" == sent.body["events"]
    assert (200, "queued") == (news.status, news.body["state"])
    assert f"/front/model/tasks/{behind.body['id']}" == behind.headers["Location"]


@pytest.mark.parametrize(("threads", "times"), [(1, 1), (2, 0)])
def test_a_server_that_takes_one_request_at_a_time_says_so_once(servers, threads, times):
    """Nothing batches behind gunicorn's plain worker: its log has it, with what to start."""
    with servers.door("flask", options=(f"--threads={threads}",)) as door:
        door.ask("GET", "/healthz")
        door.ask("GET", "/healthz")

        assert times == door.child.log.read_text().count("--threads=64 alone")
