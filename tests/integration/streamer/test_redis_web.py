"""Streamers in web servers that fork, patch, thread and loop."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from urllib.request import ProxyHandler, build_opener

import pytest

from celery_batch.processes.managed_process import wait_until
from tests.services.servers.ports import quiet_port
from tests.services.streamer_workers import LONG, PROGRAMS, StreamerWorkers

GUNICORN = ("gunicorn", "--preload", "-w", "2", "-k")
SERVERS = {
    "sync": (*GUNICORN, "sync", "web_file:wsgi", "-b"),
    "gthread": (*GUNICORN, "gthread", "--threads", "8", "web_file:wsgi", "-b"),
    "gevent": (*GUNICORN, "gevent", "web_file:wsgi", "-b"),
    "uvicorn": ("uvicorn", "--lifespan", "off", "web_file:asgi", "--port"),
}


_THOROUGH = pytest.mark.thorough("streamers made before the fork of each web server")


@pytest.mark.parametrize(
    "server",
    [
        "gthread",
        "gevent",
        *(pytest.param(each, marks=_THOROUGH) for each in ("sync", "uvicorn")),
    ],
)
def test_web_servers(workers: StreamerWorkers, server: str):
    """A streamer that was made, and used, before the fork answers in each process after it."""
    port = quiet_port()
    place = str(port) if server == "uvicorn" else f"127.0.0.1:{port}"
    browser = build_opener(ProxyHandler({}))

    def get(number: int) -> dict:
        url = f"http://127.0.0.1:{port}/?s=a{number}&s=b{number}"
        with browser.open(url, timeout=LONG) as answer:
            return json.load(answer)

    def silent() -> str:
        try:
            return "" if get(0) else "an empty answer"
        except OSError as error:
            return str(error)

    with workers.run("-m", *SERVERS[server], place, cwd=PROGRAMS) as child:
        wait_until(silent, [child], what=server, timeout=LONG)
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(get, range(16)))

    assert [[f"a{number}", f"b{number}"] for number in range(16)] == [
        answer["outputs"] for answer in answers
    ]
    assert {"before"} == {answer["first"][1] for answer in answers}
    has_forked = {answer["pid"] != answer["first"][0] for answer in answers}
    assert {server != "uvicorn"} == has_forked
