"""gunicorn's threads, in which a request that waits has none: on real servers."""

from __future__ import annotations

import http.client
import re
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from web_lot import ask, asked, noted, parking_lot

from celery_batch.cli.child import wait_until
from webapp.messages import Answer
from webapp.parked import OFFER, Parked, parks


@pytest.fixture(scope="module")
def lot(tmp_path_factory):
    """The port of a server of the bare app with two threads, and the file of its notes."""
    folder = tmp_path_factory.mktemp("lot")
    with parking_lot(folder) as (port, _):
        yield port, folder / "notes"


def test_more_requests_wait_than_there_are_threads(lot):
    """Twenty that wait for hours keep two threads from nothing."""
    port, _ = lot
    waiting = [asked(port, "/wait") for _ in range(20)]
    for each in waiting:
        each.__enter__()

    said = [ask(port, "/now") for _ in range(5)]

    for each in waiting:
        each.__exit__(None, None, None)
    assert [200] * 5 == [status for status, _ in said]
    assert {b"webapp-hand-1", b"webapp-hand-2"} >= {name for _, name in said}


def test_answers_are_made_on_one_loop_and_connections_go_on(lot):
    """Requests of one connection are answered in turn, parked or not, and it stays open."""
    port, _ = lot
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    said = []
    for path in ("/", "/now", "/", "/"):
        connection.request("GET", path)
        response = connection.getresponse()
        assert response.headers["X-More"] == (None if path == "/now" else path)
        said.append(response.read())
        local = connection.sock.getsockname()
    connection.request("GET", "/")
    connection.getresponse().read()

    assert local == connection.sock.getsockname()
    assert [b"webapp-attendant"] * 3 == [said[0], *said[2:]]
    connection.close()


def test_requests_sent_behind_one_that_waits_are_answered_in_order(lot):
    """A client that does not wait for answers gets all of them, in its order."""
    port, _ = lot
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        lines = [f"GET {path} HTTP/1.1\r\nHost: t\r\n\r\n" for path in ("/", "/now", "/")]
        client.sendall("".join(lines).encode())
        got = b""
        while got.count(b"webapp-attendant") < 2:
            piece = client.recv(65536)
            assert piece, got
            got += piece

    assert ["attendant", "hand", "attendant"] == re.findall(r"webapp-([a-z]+)", got.decode())


@pytest.mark.parametrize("path", ["/fail", "/exit", "/cancel"])
def test_an_answer_that_cannot_be_made_is_an_error(lot, path):
    """Whatever breaks while a request is parked, its client hears of it, and others go on."""
    port, notes = lot

    assert ask(port, path)[0] == 500
    assert ask(port, "/")[0] == 200
    wait_until(lambda: noted(notes, f"closed {path}"), [], what="its end", timeout=30)


def test_clients_that_read_nothing_hold_a_thread_and_no_more(lot):
    """One that does not take its answer keeps nobody else from theirs."""
    port, _ = lot
    with asked(port, "/large"):
        said = [ask(port, "/")[0] for _ in range(5)]

    assert [200] * 5 == said


def test_a_request_whose_client_goes_ends(lot):
    """Its answer is not made any more, and what it held is let go of."""
    port, notes = lot
    with asked(port, "/wait"):
        pass

    wait_until(lambda: noted(notes, "closed /wait"), [], what="its end", timeout=30)


def test_hooks_hear_of_parked_requests_when_they_have_been_answered(lot):
    """The hook after a request knows the status of its answer."""
    port, notes = lot
    ask(port, "/")

    wait_until(lambda: noted(notes, "hook / 200 OK"), [], what="the hook", timeout=30)


@pytest.mark.parametrize("count", [1, 3])
def test_a_server_that_is_told_to_stop_answers_what_it_has_parked(servers, count):
    """Requests that wait when the signal comes are answered, and then it ends."""
    options = ("--threads=1", "--graceful-timeout=30")
    with servers.worker(), servers.door("flask-parking", "/readyz", options) as door:
        with ThreadPoolExecutor(count) as clients:
            replies = [clients.submit(door.predict, "sleep 1.5 [MASK]") for _ in range(count)]
            wait_until(lambda: _why_fewer(door, count), [door.child], what="them", timeout=30)
            door.child.stop(grace=30)
            statuses = [reply.result().status for reply in replies]

        assert [200] * count == statuses


def _why_fewer(door, count):
    with urllib.request.urlopen(f"http://127.0.0.1:{door.port}/metrics", timeout=30) as response:
        said = re.search(r"requests_in_flight (\d+)", response.read().decode())
    # This one is counted, too.
    return "" if said and int(said[1]) > count else f"{said and said[1]} in flight"


def test_a_process_is_renewed_after_so_many_requests(tmp_path):
    """The option --max-requests counts parked ones, too, and none of them is lost."""
    with parking_lot(tmp_path, "--max-requests=10") as (port, _):
        assert [200] * 50 == [ask(port, "/")[0] for _ in range(50)]


def test_a_parked_answer_is_no_body():
    """Where something stands between app and server that sends it on, it is told so."""

    async def answer():
        """Answer with an empty body."""
        return Answer(body=b"")

    with pytest.raises(TypeError, match=OFFER):
        list(Parked(answer))


def test_only_servers_that_offer_it_park():
    """A door knows by the environ."""
    assert parks({OFFER: True})
    assert not parks({})


FRAMEWORKS = """
import io
from webapp.messages import Answer
from webapp.parked import OFFER
environ = {OFFER: True, "REQUEST_METHOD": "POST", "PATH_INFO": "/predict", "SERVER_NAME": "x"}
environ |= {"SERVER_PORT": "80", "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO()}
"""

FLASK = """
from webapp.flask_app import app

@app.after_request
def remember(response):
    response.set_cookie("a", "b")
    return response

parked = app(environ, None)
"""

DJANGO = """
from webapp.django_app.wsgi import _django, application

def remembering(request, get_response=_django._middleware_chain):
    response = get_response(request)
    response.set_cookie("a", "b")
    return response

_django._middleware_chain = remembering
parked = application(environ, None)
"""


@pytest.mark.parametrize("code", [FLASK, DJANGO], ids=["flask", "django"])
def test_what_a_framework_says_besides_is_kept(in_python, code):
    """A cookie goes with a parked answer, and the length of the empty one in its place does not."""
    told = "print(parked.headers_of(Answer(body=b'', headers={'Content-Type': 'x/y'})))"
    url = "redis://127.0.0.1:1"  # never connected to
    out = in_python(
        FRAMEWORKS + code + told, CELERY_BROKER_URL=url, CELERY_RESULT_BACKEND=url
    ).splitlines()[-1]

    assert out.startswith("[('Content-Type', 'x/y'), ('Set-Cookie', '")
    assert "a=b; Path=/" in out
    assert "ength" not in out


def test_an_answer_says_what_it_says():
    """What its framework said of the same name gives way to it, and the rest stands beside it."""
    answer = Answer(body=b"", headers={"Cache-Control": "no-store"})
    parked = Parked(lambda: None, headers=[("cache-control", "public"), ("X-More", "1")])

    assert [("Cache-Control", "no-store"), ("X-More", "1")] == parked.headers_of(answer)
