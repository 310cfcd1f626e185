"""Requests that nobody means well with, sent to every door on its real server."""

from __future__ import annotations

import http.client
import re
import socket
import time

import pytest
from web_hostile import request, send

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=x"
HEAD = (
    b"POST /predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
)
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
PART = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'
S_PART = b'--x\r\nContent-Disposition: form-data; name="s"\r\n'

#: What every answer of ours says, however bad the request was.
SAFE = ("x-request-id", "content-security-policy", "x-content-type-options", "x-frame-options")

#: A request of ours to refuse, and the statuses that fit.
REFUSED = {
    "unknown-path": (request("GET", "/nowhere"), {404}),
    "wrong-method": (request("GET", "/predict"), {405}),
    "options": (request("OPTIONS", "/predict"), {405}),
    "trace": (request("TRACE", "/predict"), {405}),
    "head-of-nothing": (request("HEAD", "/nowhere"), {404}),
    "head-of-a-post": (request("HEAD", "/predict"), {405}),
    "star": (request("OPTIONS", "*"), {404}),
    "two-slashes": (request("GET", "//healthz"), {404}),
    "path-no-utf8": (request("GET", "/%ff%fe"), {404}),
    "path-euro": (request("GET", "/tasks/%e2%82%ac"), {404}),
    "path-nul": (request("GET", "/a%00b"), {404}),
    "path-lines": (request("GET", "/a%0d%0aSet-Cookie:%20x"), {404}),
    "traversal": (request("GET", "/page/../../../../etc/passwd"), {404}),
    "traversal-escaped": (request("GET", "/page/%2e%2e%2f%2e%2e%2fetc%2fpasswd"), {404}),
    "traversal-backslash": (request("GET", "/page/..%5c..%5cetc%5cpasswd"), {404}),
    "traversal-absolute": (request("GET", "/page//etc/passwd"), {404}),
    "task-star": (request("GET", "/tasks/*"), {404}),
    "task-key": (request("GET", "/tasks/celery-task-meta-x"), {404}),
    "task-nul": (request("DELETE", "/tasks/a%00b"), {404}),
    "task-lines": (request("GET", "/tasks/a%0d%0aFLUSHALL%0d%0a"), {404}),
    "task-long": (request("GET", "/tasks/" + "a" * 3000), {404}),
    "task-slash": (request("GET", "/tasks/..%2f..%2fa"), {404}),
    "events-star": (request("GET", "/events/*"), {404}),
    "no-utf8": (request("POST", "/predict", b'{"inputs":["\xff"]}', Content_Type=JSON), {400}),
    "no-json": (request("POST", "/predict", b"\x00" * 100, Content_Type=JSON), {400}),
    "nan": (request("POST", "/predict", b'{"inputs":[NaN]}', Content_Type=JSON), {400}),
    "deep": (request("POST", "/predict", b"[" * 500_000, Content_Type=JSON), {400}),
    "deep-inside": (
        request("POST", "/predict", b'{"inputs":' + b"[" * 99_999 + b"]" * 99_999 + b"}",
                Content_Type=JSON), {400},
    ),
    "digits": (
        request("POST", "/predict", b'{"inputs":[' + b"9" * 99_999 + b"]}", Content_Type=JSON),
        {400},
    ),
    "half-a-pair": (
        request("POST", "/predict", b'{"inputs":["\\ud800"]}', Content_Type=JSON), {400}
    ),
    "odd-type": (request("POST", "/predict", b"{}", Content_Type="\xff/x;" * 9), {400, 415}),
    "oversized": (request("POST", "/predict", b" " * 2**21, Content_Type=JSON), {413}),
    "oversized-nowhere": (request("POST", "/nowhere", b" " * 2**21), {404}),
    "oversized-get": (request("GET", "/healthz", b" " * 2**21), {413}),
    "oversized-chunks": (CHUNKED + CHUNK * 32 + b"0\r\n\r\n", {413}),
    "fields": (request("POST", "/stream", b"x=1&" * 250_000, Content_Type=FORM), {400, 413}),
    "inputs": (request("POST", "/stream", b"s=1&" * 250_000, Content_Type=FORM), {413}),
    "parts": (request("POST", "/stream", PART * 18_000 + b"--x--\r\n", Content_Type=PARTS), {400}),
    "no-boundary": (request("POST", "/stream", PART, Content_Type=PARTS[:19]), {400}),
    "cut-part": (request("POST", "/stream", S_PART + b"\r\nabc", Content_Type=PARTS), {400}),
    "part-headers": (
        request("POST", "/stream", S_PART + b"A: b\r\n" * 9999 + b"\r\nc\r\n--x--\r\n",
                Content_Type=PARTS), {400},
    ),
    "part-charset": (
        request("POST", "/stream", S_PART + b"Content-Type: a/b; charset=no\r\n\r\nc\r\n--x--\r\n",
                Content_Type=PARTS), {400},
    ),
    "time-out-nan": (
        request("POST", "/predict", b'{"inputs":["a"]}', Content_Type=JSON, X_Timeout="nan"), {400}
    ),
    "time-out-odd": (
        request("POST", "/predict", b'{"inputs":["a"]}', Content_Type=JSON, X_Timeout="\xff"), {400}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "statuses"), REFUSED.values(), ids=REFUSED.keys())
def test_a_hostile_request_is_refused_in_our_words(door, raw, statuses):
    """Whatever it is, the answer is the contract's, and no server or framework shows."""
    traces = door.child.log.read_text().count("Traceback")
    wire = send(door, raw)

    assert wire.status in statuses
    assert [] == [name for name in SAFE if name not in wire.headers]
    assert JSON == wire.headers["content-type"]
    assert not re.search(rb"(?i)traceback|django|werkzeug|starlette|\.py|/tmp", wire.body)
    assert raw.startswith(b"HEAD") or wire.error
    assert traces == door.child.log.read_text().count("Traceback")


#: What never comes to us, or not to its end: the server refuses it, or we do, or nobody can.
MANGLED = {
    "no-http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "method-small": request("post", "/predict"),
    "connect": request("CONNECT", "x:80"),
    "line-long": request("GET", "/" + "a" * 70_000),
    "header-long": request("GET", "/healthz", A="b" * 300_000),
    "headers": request("GET", "/healthz", **{f"a{number}": "b" for number in range(500)}),
    "length-negative": HEAD + b"Content-Length: -1\r\n\r\n{}",
    "length-plus": HEAD + b"Content-Length: +2\r\n\r\n{}",
    "length-huge": HEAD + b"Content-Length: " + b"9" * 400 + b"\r\n\r\n{}",
    "lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "length-and-chunks": HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunk-odd": CHUNKED + b"zz\r\nab\r\n0\r\n\r\n",
    "chunk-negative": CHUNKED + b"-1\r\nab\r\n0\r\n\r\n",
    "id-lines": request("GET", "/healthz", X_Request_ID="a\rSet-Cookie: b"),
    "id-folded": request("GET", "/healthz", X_Request_ID="a\r\n Set-Cookie: b"),
    "id-nul": request("GET", "/healthz", X_Request_ID="a\x00b"),
    "hosts": request("GET", "/healthz", HOST="y"),
}  # fmt: skip


@pytest.mark.parametrize("raw", MANGLED.values(), ids=MANGLED.keys())
def test_a_mangled_request_harms_nobody(door, raw):
    """It is refused, or answered like a harmless one; never an error of ours, never a hang."""
    traces = door.child.log.read_text().count("Traceback")
    wire = send(door, raw)

    assert wire.status in {*range(400, 500), 501} or b'{"status":"ok"}' == wire.body
    assert "set-cookie" not in wire.headers
    assert not re.search(rb"Traceback|site-packages", wire.raw)
    assert traces == door.child.log.read_text().count("Traceback")


@pytest.mark.parametrize("raw", [HEAD + b"Content-Length: 999\r\n\r\n{}", CHUNKED + b"10\r\nab"])
def test_a_body_that_ends_too_soon_is_no_request(door, raw):
    """Who announces more than comes has no answer, or hears so; the server goes on."""
    assert send(door, raw, finish=True).status in {0, 400}
    assert "" == door.why_not("/healthz")


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_who_sends_too_much_hears_why(door, framing, connection):
    """A client that sends all of a far too large body before it listens has its answer."""
    head = HEAD.replace(b"Connection: close", b"Connection: " + connection.encode())
    size = 8 * 2**20
    raw = head + b"Content-Length: %d\r\n\r\n" % size + b" " * size
    if framing == "chunks":
        raw = head + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK * 128 + b"0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", door.port), timeout=10) as client:
        client.sendall(raw)
        response = http.client.HTTPResponse(client)
        response.begin()

        assert 413 == response.status


@pytest.mark.parametrize("given", ["a b", "", "x" * 200, "\xe9", "<script>", "${jndi:x}", "%0d%0a"])
def test_an_odd_name_of_a_request_is_replaced(door, given):
    """What comes back as the request's name is harmless."""
    wire = send(door, request("GET", "/healthz", X_Request_ID=given))

    assert 200 == wire.status
    assert re.fullmatch("[0-9a-f]{32}", wire.headers["x-request-id"])


def test_a_header_that_comes_twice_is_not_half_read(door):
    """Two names are no name, wherever a server puts the second."""
    raw = request("GET", "/healthz", X_Request_ID="a").replace(
        b"\r\n\r\n", b"\r\nX-Request-ID: b\r\n\r\n"
    )

    assert re.fullmatch("[0-9a-f]{32}", send(door, raw).headers["x-request-id"])


def test_a_request_has_one_line_in_the_log(door):
    """Its name and its status are there once, whatever its path tries."""
    path = "/%0a2026-11-21 CRITICAL forged".replace(" ", "%20")
    send(door, request("GET", path, X_Request_ID="forger-1"))
    lines = [line for line in door.child.log.read_text().splitlines() if "forger-1" in line]

    assert 1 == len(lines)
    assert "[forger-1] method=GET path=" in lines[0]
    assert "status=404" in lines[0]
    assert not re.search(r"(?m)^2026-11-21 CRITICAL", door.child.log.read_text())


def test_a_head_tells_the_length_of_what_it_leaves_out(door):
    """HEAD says of a path what GET would, without the body."""
    head = send(door, request("HEAD", "/healthz"))
    get = send(door, request("GET", "/healthz"))

    assert (200, b"") == (head.status, head.body)
    assert get.headers["content-length"] == head.headers["content-length"] != "0"


def test_a_head_of_a_stream_ends_at_once(door):
    """HEAD of what comes bit by bit waits for none of it, and knows no length."""
    sent = door.post("/tasks", {"input": "sleep 6 [MASK]"}).body
    began = time.monotonic()
    wires = [send(door, request("HEAD", path)) for path in ("/live", sent["events"])]
    took = time.monotonic() - began

    assert [(200, b"")] * 2 == [(wire.status, wire.body) for wire in wires]
    assert all("content-length" not in wire.headers for wire in wires)
    assert took < 5


def test_what_has_not_changed_has_no_length(door):
    """A 304 has no body, and says of none how long it is."""
    tag = send(door, request("GET", "/")).headers["etag"]
    wire = send(door, request("GET", "/", If_None_Match=tag))

    assert (304, b"") == (wire.status, wire.body)
    assert "content-length" not in wire.headers
