"""The sample client: each picture posted once, never too many at once, every failure counted."""

from __future__ import annotations

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from examples.serving.client import Tally, main

ANSWER = {"task_id": "1", "task_info": {"result": [6]}}


class Host(BaseHTTPRequestHandler):
    """Answers when as many as are expected at once are there, or when they will not be."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self):
        """Answer one picture, with what the server's list of answers says."""
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            number = len(server.seen)
            server.seen.append(base64.b64decode(body["img"]))
            server.now += 1
            server.most = max(server.most, server.now)
        if number < server.together.parties:
            server.together.wait(20)
        with server.lock:
            server.now -= 1
        status, text = server.answers.get(number, (200, json.dumps(ANSWER)))
        if status is None:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_arguments):
        """Say nothing."""


@pytest.fixture
def host():
    """Run a server that keeps the first six waiting for each other."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Host) as server:
        server.lock, server.seen, server.answers = threading.Lock(), [], {}
        server.now = server.most = 0
        server.together = threading.Barrier(6)
        server.handle_error = lambda *_arguments: None
        server.url = f"http://127.0.0.1:{server.server_address[1]}/predict"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def post(host, tmp_path):
    """Run the client as its users do."""
    picture = tmp_path / "dog.jpg"
    picture.write_bytes(b"a dog")

    def post(*options, url=None):
        return CliRunner().invoke(main, [str(picture), "--url", url or host.url, *options])

    return post


def test_all_pictures_are_posted(host, post):
    """It posts the picture as often as told, so many at once, and shows rate and percentiles."""
    done = post("--count=40", "--in-flight=6")

    assert (0, [b"a dog"] * 40, 6) == (done.exit_code, host.seen, host.most), done.output
    assert "40/40" in done.output
    assert "40 answered, 0 failed, in " in done.output
    assert re.search(r"^[\d.]+ answers per second$", done.output, re.MULTILINE)
    assert re.search(r"p50 [\d.]+, p95 [\d.]+, p99 [\d.]+, slowest [\d.]+\n", done.output)


def test_failures_are_counted_and_told(host, post):
    """What is refused, is no answer or never comes is a failure of its own, and of the program."""
    host.answers = {7: (503, "[busy]"), 9: (200, "{}"), 11: (200, "nothing"), 12: (503, "[busy]")}
    host.answers[14] = (None, "")
    done = post("--count=20", "--in-flight=6")

    assert (1, 20) == (done.exit_code, len(host.seen)), done.output
    assert "15 answered, 5 failed" in done.output
    assert "failed 2 times: 503 [busy]" in done.output
    assert {"KeyError", "JSONDecodeError", "RemoteProtocolError"} <= set(
        re.findall(r"failed 1 times: (\w+)", done.output)
    )


def test_nobody_there_is_a_failure(post):
    """Where nobody listens, each request fails and the program ends, with no rate to show."""
    done = post("--count=3", url="http://127.0.0.1:9/predict")

    assert 1 == done.exit_code
    assert "0 answered, 3 failed" in done.output
    assert "failed 3 times: ConnectError" in done.output


def test_quantiles_are_of_answers():
    """A quantile is the latency of one of the answers."""
    tally = Tally(latencies=[0.3, 0.1, 0.4, 0.2])

    assert [0.1, 0.2, 0.4] == [tally.quantile(share) for share in (0, 0.5, 1)]
