"""Streamers of one machine in web servers that fork, patch, thread and loop."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.request import ProxyHandler, build_opener

import psutil
import pytest

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from tests.services.servers.ports import quiet_port
from tests.services.setup import ROOT

SITE = "tests.apps.sites.streamed_site"
GUNICORN = ("gunicorn", "--preload", "-w", "2", "-k")
SERVERS = {
    "sync": (*GUNICORN, "sync", f"{SITE}:wsgi", "-b"),
    "gthread": (*GUNICORN, "gthread", "--threads", "8", f"{SITE}:wsgi", "-b"),
    "gevent": (*GUNICORN, "gevent", f"{SITE}:wsgi", "-b"),
    "uvicorn": ("uvicorn", "--lifespan", "off", f"{SITE}:asgi", "--port"),
}


@pytest.mark.parametrize("server", SERVERS)
def test_web_servers_with_streamers(server, tmp_path):
    """Made and used before the fork, streamers answer after it, and leave no process behind."""
    port = quiet_port()
    place = str(port) if server == "uvicorn" else f"127.0.0.1:{port}"
    browser = build_opener(ProxyHandler({}))

    def get(number):
        url = f"http://127.0.0.1:{port}/?s=a{number}&s=b{number}"
        with browser.open(url, timeout=60) as page:
            return json.load(page)

    def silent():
        try:
            return "" if get(0) else "an empty page"
        except OSError as error:
            return str(error)

    command = [sys.executable, "-m", *SERVERS[server], place]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with ManagedProcess(command, tmp_path / "server.log", env=env) as child:
        wait_until(silent, [child], what=server, timeout=60)
        with ThreadPoolExecutor(8) as threads:
            pages = list(threads.map(get, range(16)))
        pids = {pid for page in pages for pid in page["pids"]}

    expected = [[[f"a{number}", f"b{number}"]] * 2 for number in range(16)]
    assert expected == [page["answers"] for page in pages]
    assert {server != "uvicorn"} == {page["pids"][0] != page["first"][0] for page in pages}
    wait_until(
        lambda: ", ".join(str(pid) for pid in pids if psutil.pid_exists(pid)),
        [],
        what="the end of the processes",
        timeout=60,
    )
    assert "Traceback" not in (tmp_path / "server.log").read_text()
