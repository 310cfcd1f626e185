"""The load driver: every question asked once, every wrong answer counted."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from demo.load import Load, Question, run_load


class Echo(BaseHTTPRequestHandler):
    """Answers each sentence with itself, badly where the sentence asks for it."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self):
        """Answer one form."""
        size = int(self.headers["Content-Length"])
        sentence = parse_qs(self.rfile.read(size).decode())["s"][0]
        self.server.asked[sentence] += 1
        self.server.connections.add(self.client_address)
        if sentence == "hang up":
            self.close_connection = True
            return
        body = json.dumps(["wrong" if sentence == "lie" else sentence]).encode()
        self.send_response(503 if sentence == "refuse" else 200)
        self.send_header("Content-Length", str(len(body)))
        if sentence == "say goodbye":
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        """Say nothing."""


@pytest.fixture
def server():
    """Run a server that counts what it was asked, on how many connections."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        server.asked, server.connections = Counter(), set()
        server.handle_error = lambda *_arguments: None  # a client that leaves is no surprise
        server.url = f"http://127.0.0.1:{server.server_address[1]}/echo"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def asked(*sentences):
    """Return questions that want their own sentence back."""
    return [Question(sentence, sentence) for sentence in sentences]


def test_each_question_is_asked_once(server):
    """All clients together ask every question once, over one connection each."""
    sentences = [f"sentence {number} & more=[MASK]" for number in range(100)]
    answered = []
    load = run_load(server.url, asked(*sentences), clients=8, on_answer=lambda: answered.append(1))

    assert server.asked == Counter(sentences)
    assert len(answered) == 100
    assert len(load.latencies) == 100
    assert load.errors == []
    assert len(server.connections) == 8


def test_failures_are_counted_and_named(server):
    """A refusal, a wrong answer and a lost connection are errors; the load goes on."""
    questions = asked("one", "refuse", "two", "lie", "three", "hang up", "four")
    load = run_load(server.url, questions, clients=1)

    assert len(load.latencies) == 4
    assert load.errors == [
        '503 ["refuse"]',
        "'lie' got ['wrong'], not 'lie'",
        "0 bytes read on a total of undefined expected bytes",
    ]


def test_connection_that_ends_in_peace_is_no_error(server):
    """A server may close a connection after its answer; the client makes a new one."""
    load = run_load(server.url, asked("one", "say goodbye", "two"), clients=1)

    assert load.errors == []
    assert len(server.connections) == 2


def test_absent_server_fails_every_question():
    """Where nobody listens, every question is an error and the load ends."""
    load = run_load("http://127.0.0.1:1/", asked("one", "two"), clients=2)

    assert len(load.errors) == 2
    assert "Connect call failed" in load.errors[0]


def test_check_ends_the_load(server):
    """What the check raises ends the load at once, with that error."""

    def forever():
        while True:
            yield Question("again", "again")

    ends_at = time.monotonic() + 0.5

    def check():
        if time.monotonic() > ends_at:
            raise RuntimeError("worker is gone")

    with pytest.raises(RuntimeError, match="worker is gone"):
        run_load(server.url, forever(), clients=2, check=check)


def test_numbers():
    """Requests per second count good answers only; quantiles are by nearest rank."""
    load = Load(2.0, [number / 100 for number in range(100, 0, -1)], ["one"])

    assert load.per_second == 50.0
    assert load.quantile(0.5) == 0.5
    assert load.quantile(0.99) == 0.99
    assert load.quantile(1.0) == 1.0
    assert math.isnan(Load(1.0, [], ["one"]).quantile(0.5))
