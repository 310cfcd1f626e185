"""What stands before all routes: who comes in, how it ends, and what every answer says."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from types import SimpleNamespace

import pytest

from webapp import logs, request_id
from webapp.courier import Courier
from webapp.errors import InvalidInput
from webapp.guard import Guard
from webapp.messages import Answer, Ask, Stream
from webapp.meters import Meters
from webapp.settings import Settings
from webapp.straight import straight

KEY = "a-secret-of-some-length"
SAFE = ("X-Content-Type-Options", "Content-Security-Policy", "X-Frame-Options", "Referrer-Policy")


class Way:
    """Calls what may block right here, and counts it."""

    calls = 0

    async def call(self, function, *args):
        """Call a function."""
        self.calls += 1
        return function(*args)


class Place:
    """A guard before one route, which answers what a test wants."""

    def __init__(self, **settings):
        self.guard = Guard(Settings(**settings), {"/predict": ["POST"]}.get)
        self.outcome = Answer(body={"outputs": []})
        self.seen = []

    async def route(self):
        """Answer, or fail."""
        self.seen.append(request_id.current())
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def ask(self, method="POST", path="/predict", client="192.0.2.1", **headers):
        """Send one request; underscores in a header's name stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        ask = Ask(method=method, path=path, headers=named, client=client)
        return straight(self.guard.answer(ask, Way(), self.route))


def test_an_answer_is_completed():
    """Every answer says who it is for, and that browsers shall do little with it."""
    answer = Place().ask()

    assert 32 == len(answer.headers["X-Request-ID"])
    assert set(SAFE) <= answer.headers.keys()
    assert "no-store" == answer.headers["Cache-Control"]
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "Strict-Transport-Security" not in answer.headers


def test_the_page_may_load_its_own_files():
    """The page's policy allows what is served here, and no inline script."""
    policy = Place().ask("GET", "/page/page.js").headers["Content-Security-Policy"]

    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in policy


def test_an_answer_knows_better():
    """What a route says of caching and types stays."""
    place = Place(cors_origins="https://friend.example", hsts=600)
    place.outcome = Answer(body=b"", headers={"Cache-Control": "max-age=9", "Vary": "Accept"})
    headers = place.ask("GET", "/page/page.js").headers

    assert "max-age=9" == headers["Cache-Control"]
    assert "Accept, Origin" == headers["Vary"]
    assert "max-age=600" == headers["Strict-Transport-Security"]


@pytest.mark.parametrize("given", ["a", "req-1.2:3/4+5=@6_7", "x" * 128])
def test_a_harmless_name_is_kept(given):
    """A client may name its request; inside, the name is known everywhere."""
    place = Place()

    assert given == place.ask(x_request_id=given).headers["X-Request-ID"]
    assert [given] == place.seen
    assert request_id.NONE == request_id.current()


@pytest.mark.parametrize("given", ["", "a b", "a\r\nSet-Cookie: x", "a\n", "é", "x" * 129, "-a"])
def test_another_name_is_replaced(given):
    """What could break a line, a header or a command is never passed on."""
    place = Place()

    assert 32 == len(place.ask(x_request_id=given).headers["X-Request-ID"])
    assert place.seen[0] != given


def test_a_crash_is_told_without_details(caplog):
    """The client hears under which name it is in the log; the log has the rest."""
    place = Place()
    place.outcome = RuntimeError("/srv/private is broken")
    answer = place.ask(x_request_id="r-1")

    assert 500 == answer.status
    assert "InternalError" == answer.body["error"]["type"]
    assert "r-1" in answer.body["error"]["message"]
    assert "private" not in str(answer.body)
    assert "/srv/private is broken" in caplog.text
    assert set(SAFE) <= answer.headers.keys()


def test_too_many_at_once_are_refused_at_once():
    """A client has its number in hand and no more; others are not concerned."""
    place = Place(max_concurrent=2)
    statuses = []

    async def route():
        """Ask while this request is in hand."""
        if len(statuses) < 3:
            client = ["192.0.2.1", "192.0.2.1", "192.0.2.9"][len(statuses)]
            statuses.append(0)
            ask = Ask(method="POST", path="/predict", client=client)
            answer = await place.guard.answer(ask, Way(), route)
            statuses.append((client, int(answer.status), answer.headers.get("Retry-After")))
        return Answer(body={})

    straight(
        place.guard.answer(Ask(method="POST", path="/predict", client="192.0.2.1"), Way(), route)
    )

    assert ("192.0.2.1", 429, "1") in statuses
    assert ("192.0.2.1", 200, None) in statuses
    assert 0 == place.guard.turnstile.inside


@pytest.mark.parametrize(
    "outcome",
    [
        Answer(body={}),
        InvalidInput("no"),
        RuntimeError("x"),
        asyncio.CancelledError(),
        SystemExit(),
    ],
    ids=["answer", "refusal", "crash", "cancelled", "exit"],
)
def test_who_came_in_goes_out(outcome):
    """However a request ends, its client may come again."""
    place = Place(max_concurrent=1)
    place.outcome = outcome
    for _ in range(2):
        with contextlib.suppress(asyncio.CancelledError, SystemExit):
            assert 429 != place.ask().status

    assert 0 == place.guard.turnstile.inside


def stream():
    """Return a body of three chunks."""

    async def chunks():
        """Yield them."""
        for chunk in "abc":
            yield chunk

    return Answer(body=Stream(chunks()))


def to_the_end(body):
    """Read a body as a thread does."""
    assert ["a", "b", "c"] == list(body)


def on_a_loop(body):
    """Read a body as an event loop does."""

    async def read():
        """Return all chunks."""
        return [chunk async for chunk in body]

    assert ["a", "b", "c"] == asyncio.run(read())


def cut_short(body):
    """Read a part, as for a client that goes away."""
    chunks = iter(body)
    assert "a" == next(chunks)
    chunks.close()


@pytest.mark.parametrize(
    "read", [to_the_end, on_a_loop, cut_short, id], ids=lambda read: read.__name__
)
def test_a_stream_is_in_hand_until_its_end(read):
    """Read to the end, cut short, or never begun: then only the client may come again."""
    place = Place(max_concurrent=1)
    place.outcome = stream()
    answer = place.ask()
    meanwhile = place.ask()
    read(answer.body)
    del answer
    gc.collect()
    place.outcome = Answer(body={})

    assert 429 == meanwhile.status
    assert 200 == place.ask().status
    assert 0 == place.guard.turnstile.inside


def test_a_client_over_its_rate_is_told_when_to_come_again():
    """The answer says what the limit is, and when the next stretch begins."""
    place = Place(rate="2/hour")
    answers = [place.ask() for _ in range(3)]

    assert [200, 200, 429] == [answer.status for answer in answers]
    assert "TooManyRequests" == answers[2].body["error"]["type"]
    assert 1 <= int(answers[2].headers["Retry-After"]) <= 3600
    assert answers[0].headers["RateLimit"].startswith('"requests";r=1;t=')
    assert 2 == len(place.seen)


def test_probes_are_always_answered():
    """A load balancer needs no key and has no rate."""
    place = Place(rate="1/hour", api_keys=f"ann={KEY}", max_concurrent=1)
    statuses = {place.ask("GET", path).status for path in ("/healthz", "/readyz") * 3}

    assert {200} == statuses


def test_a_key_is_needed_where_it_matters():
    """The page and what describes the service are open, the rest is not."""
    place = Place(api_keys=f"ann={KEY}", open_paths="/metrics")
    public = ["/", "/page/page.js", "/docs", "/openapi.json", "/metrics", "/healthz"]
    closed = ["/predict", "/live", "/nowhere", "/metricsx", "/page"]

    assert {200} == {place.ask("GET", path).status for path in public}
    assert {401} == {place.ask("GET", path).status for path in closed}
    assert 200 == place.ask(x_api_key=KEY).status


def test_a_key_has_a_rate_of_its_own():
    """Two who share an address are two clients, and who guesses keys is one, too."""
    place = Place(api_keys=f"ann={KEY} bob={KEY}2", rate="1/hour")
    keys = [KEY, f"{KEY}2", KEY, "guessed", "guessed-again"]

    assert [200, 200, 429, 401, 429] == [place.ask(x_api_key=key).status for key in keys]


def test_a_preflight_needs_no_key():
    """Browsers ask before they send any header of a page's own."""
    place = Place(api_keys=f"ann={KEY}", cors_origins="https://friend.example")
    asked = {"origin": "https://friend.example", "access_control_request_method": "POST"}
    answer = place.ask("OPTIONS", **asked)

    assert 204 == answer.status
    assert "https://friend.example" == answer.headers["Access-Control-Allow-Origin"]
    assert "X-Request-ID" in answer.headers
    assert [] == place.seen


def test_a_store_of_rates_is_asked_aside(monkeypatch):
    """What may block is called in the way of the server; counting here is not."""
    place, way = Place(rate="9/hour"), Way()
    ask = Ask(method="POST", path="/predict")
    straight(place.guard.answer(ask, way, place.route))
    monkeypatch.setattr(type(place.guard._rates), "is_quick", False)
    straight(place.guard.answer(ask, way, place.route))

    assert 1 == way.calls


def test_each_answer_is_one_line_of_the_log(caplog):
    """The line says who, what and how long; a path cannot forge another line."""
    place = Place(api_keys=f"ann={KEY}")
    path = "/x\n2026 CRITICAL forged \x1b[2J"
    with caplog.at_level(logging.INFO, "webapp.access"):
        place.ask(x_api_key=KEY, x_request_id="r-1")
        place.ask(path=path, x_api_key="wrong-" + KEY)
    lines = [record.getMessage() for record in caplog.records]

    assert lines[0].startswith("method=POST path=/predict status=200 seconds=0.0")
    assert lines[0].endswith("size=0 client=key:ann address=192.0.2.1")
    assert r'path="/x\n2026 CRITICAL forged \u001b[2J" status=401' in lines[1]
    assert KEY not in "".join(lines)
    assert "\n" not in "".join(lines)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_of_the_log_shows_its_request(form, monkeypatch):
    """Whatever is written while a request is answered bears its name."""
    logger, handler = logging.getLogger("a server of this test"), logging.NullHandler()
    logger.addHandler(handler)
    monkeypatch.setattr(logs, "_LOGGERS", (logger.name,))
    monkeypatch.setattr(logs, "access", logging.getLogger("answers of this test"))
    logs.configure(form)
    record = logger.makeRecord(logger.name, 30, "", 0, "it %s", ("rains",), None)
    token = request_id.enter("r-1")
    handler.filter(record)
    request_id.leave(token)
    line = handler.format(record)

    assert "r-1" in line
    assert "it rains" in line
    assert "\n" not in line


def test_settings_show_no_secret():
    """A printed setting has neither keys nor the password of a store."""
    shown = repr(Settings(api_keys=f"ann={KEY}", rate_store=f"redis://:{KEY}@host/0"))

    assert KEY not in shown


def test_tasks_are_told_whose_they_are(monkeypatch):
    """What is sent for a request bears its name as a header."""
    sent = []

    class Sending(Way):
        """Notes what is sent."""

        async def send(self, _task, _inputs, options, _deadline):
            """Note it."""
            sent.append(options)
            return []

    monkeypatch.setattr(request_id, "current", lambda: "r-1")
    courier = Courier(None, None, Settings(), Meters({}))
    task = SimpleNamespace(name="standin")
    straight(courier.send(Sending(), task, ["a"], {"expires": 3.0}, 0.0))

    assert [{"expires": 3.0, "headers": {"request_id": "r-1"}}] == sent
