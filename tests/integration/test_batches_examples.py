"""Programs of the kinds that celery-batches documents: only their import line differs."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_batch.processes.managed_process import ManagedProcess
from celery_batch.processes.redis_server import RedisServer
from tests.services.launcher import Launcher
from tests.services.shared_setup import SOON, eventually

MODULE = "tests.apps.batches_examples"
NAMES = ("alder", "birch", "cedar")
TABLES = """
CREATE TABLE reading (id INTEGER PRIMARY KEY, sensor TEXT NOT NULL, value INTEGER NOT NULL);
CREATE TABLE member (id INTEGER PRIMARY KEY, last_logged_in TEXT);
"""
#: The broker, and the worker's pool.
WHERE = [
    ("redis", "-c", "1"),
    *(
        pytest.param(
            where,
            id="".join(where),
            marks=pytest.mark.thorough("celery-batches' examples on other brokers and pools"),
        )
        for where in (
            ("redis", "-P", "threads", "-c", "2"),
            ("redis", "-P", "solo"),
            ("rabbitmq", "-c", "2"),
            ("rabbitmq", "-P", "threads", "-c", "2"),
        )
    ),
]


class Api:
    """A small server of names, which notes what it is asked for and may refuse some of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        #: How many more times a path is refused.
        self.refused: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def _handler(api) -> type[BaseHTTPRequestHandler]:  # noqa: N805 (`self` is the handler's)
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, found = api.answer(self.path)
                body = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler

    def answer(self, path: str) -> tuple[int, Any]:
        """Return a status and what is found at a path."""
        with self._lock:
            self.asked.append(path)
            self.refused[path] -= 1
            if self.refused[path] >= 0:
                return HTTPStatus.SERVICE_UNAVAILABLE, None
        if path == "/names":
            return HTTPStatus.OK, NAMES
        return HTTPStatus.OK, path.rpartition("/")[2].upper()

    def close(self) -> None:
        """Stop it."""
        self._server.shutdown()
        self._server.server_close()


class Site:
    """A worker of the programs, its database, and the server that they ask."""

    def __init__(self, launcher: Launcher, options: tuple[str, ...], folder: Path) -> None:
        self.launcher, self.api = launcher, Api()
        self._database = folder / "site.sqlite"
        with closing(self._connect()) as connection:
            connection.executescript(TABLES)
        self.app = launcher.client()
        self.worker: ManagedProcess = launcher.worker(
            MODULE,
            *options,
            SMALL_APP_DATABASE=str(self._database),
            EXAMPLES_API=self.api.url,
            no_proxy="127.0.0.1",
        )

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._database, timeout=20)

    def ask(self, statement: str) -> list[Any]:
        """Return the rows that a statement finds."""
        with closing(self._connect()) as connection, connection:
            return connection.execute(statement).fetchall()

    def call(self, task: str, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        """Call a task."""
        return self.app.send_task(f"examples.{task}", args, kwargs)

    def printed(self) -> Counter[str]:
        """Return how often each page was asked for, by what the worker has printed."""
        found: Counter[str] = Counter()
        for page, number in re.findall(r"asked for (\S+): (\d+)", self.worker.log.read_text()):
            found[page] += int(number)
        return found


@pytest.fixture(scope="module", params=WHERE, ids="".join)
def site(
    request: pytest.FixtureRequest,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """A worker on a broker; its results are in Redis."""
    kind, *options = request.param
    url = request.getfixturevalue("rabbitmq_server").url if kind == "rabbitmq" else ""
    folder = tmp_path_factory.mktemp("site")
    with Launcher(redis_server, folder, broker=url) as launcher:
        site = Site(launcher, tuple(options), folder)
        yield site
        site.api.close()


@pytest.fixture(autouse=True)
def nothing_noted(site: Site) -> None:
    """Forget what other tests have noted."""
    site.launcher.redis.delete("stage:inserted", "stage:updated")
    site.api.asked.clear()
    site.api.refused.clear()


def outcomes(results: list[AsyncResult[Any]]) -> list[Any]:
    """Return answers, or the errors in their place."""
    return [result.get(timeout=SOON, propagate=False) for result in results]


def test_clicks_are_counted(site: Site):
    """Each is in one batch."""
    for number in range(200):
        site.call("count_pages", page="/a" if number % 3 else "/b")
    eventually(lambda: site.printed().total() >= 200, "two batches")

    assert {"/a": 133, "/b": 67} == site.printed()


def test_rows_are_inserted_in_bulk(site: Site):
    """Each row once, with one statement for each batch."""
    for number in range(300):
        site.call("store_readings", sensor=f"s{number % 7}", value=number)
    batches = site.launcher.await_facts("inserted", 3)

    assert [100] * 3 == batches
    rows = site.ask("SELECT sensor, value FROM reading ORDER BY value")
    assert [(f"s{number % 7}", number) for number in range(300)] == rows


def test_each_member_is_updated_once(site: Site):
    """With the last visit, in whatever order they came; datetimes arrive as such."""
    first = datetime(2026, 1, 1, tzinfo=UTC)
    site.ask("INSERT INTO member (id) VALUES (1), (2), (3)")
    for number in reversed(range(100)):
        site.call("note_visits", 1 + number % 2, first + timedelta(minutes=number))
    updated = site.launcher.await_facts("updated", 1)

    assert [2] == updated
    rows = site.ask("SELECT last_logged_in FROM member ORDER BY id")
    assert ["2026-01-01 01:38:00", "2026-01-01 01:39:00", None] == [each for (each,) in rows]


def test_each_caller_gets_its_answer(site: Site):
    """From one call of a server for all of a batch."""
    asked = [NAMES[number // 2 % 3] if number % 2 else f"x{number}" for number in range(200)]
    results = [site.call("is_known", name) for name in asked]

    assert [name in NAMES for name in asked] == outcomes(results)
    assert ["/names"] * 2 == site.api.asked


def test_callers_hear_of_a_server_that_fails(site: Site):
    """Those of that batch, of the same error; those of the next have their answers."""
    site.api.refused["/names"] = 1
    results = [site.call("is_known", "alder") for _ in range(100)]
    failed = outcomes(results)
    answered = outcomes([site.call("is_known", "alder") for _ in range(100)])

    assert [True] * 100 == ["HTTPError" in repr(each) for each in failed]
    (told,) = {result.traceback for result in results}
    assert told.endswith("HTTP Error 503: Service Unavailable\n")
    assert [True] * 100 == answered


def test_a_call_that_fails_fails_alone(site: Site):
    """The others of its batch have their answers."""
    site.api.refused["/names/birch"] = 1
    found = outcomes([site.call("look_up", name) for name in NAMES])

    assert ["ALDER", "CEDAR"] == [found[0], found[2]]
    assert "HTTPError" in repr(found[1])


def test_a_call_is_sent_again_until_it_succeeds(site: Site):
    """Its caller waits for the answer of the last."""
    site.api.refused["/names/birch"] = 2
    found = outcomes([site.call("look_up_again", name) for name in NAMES])

    assert ["ALDER", "BIRCH", "CEDAR"] == found
    assert {"/names/alder": 1, "/names/birch": 3, "/names/cedar": 1} == Counter(site.api.asked)
