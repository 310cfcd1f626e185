"""The examples' web servers, run for a measurement as their documents say."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.bert_model import expected
from bench.workers_ready import wait_for_workers
from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.streamer import RedisStreamer
from demo.http_client import why_not
from demo.load import Question, run_load
from examples.infill_redis import PREFIX

__all__ = ["CLIENTS", "Site", "web"]

_ROOT = Path(__file__).parents[1]

#: Clients for each worker: a batch is in the model, and the next one fills.
CLIENTS = 128

#: Seconds a part gets to be ready, beside others that get ready.
_READY_TIMEOUT = 60.0

#: Seconds until what a crowd has left behind is done; a naive server takes three.
_SETTLE_TIMEOUT = 60.0

#: So many answers in a row within so many seconds, and the server is idle again.
_CALM, _SWIFT = 3, 0.25

_QUESTION = Question("Happy birthday to [MASK].", expected("Happy birthday to [MASK]."))

_THREADS = ("-k", "gthread", "-w", "1", "--threads", str(CLIENTS + 16))
_GREENLETS = ("-k", "gevent", "-w", "2")


class Site:
    """A web server that runs, and what it needs."""

    def __init__(self, url: str, children: list[ManagedProcess]) -> None:
        self.url = url
        self._children = children

    def ask(self) -> float:
        """
        Ask one sentence; return the seconds until its answer.

        Raises:
            ServerFailed: A process ended; with its log's last lines.
            RuntimeError: There is no answer, or it is wrong.
        """
        load = run_load(self.url, [_QUESTION], clients=1, check=self._check)
        if load.errors:
            tails = [child.tail() for child in self._children]
            raise RuntimeError("\n".join([f"{self.url}: {load.errors[0]}", *tails]))
        return load.seconds

    def settle(self) -> None:
        """
        Return when the requests are done whose clients have gone, as wrk's have when it ends.

        Without that the next requests would wait behind them uncounted.
        """
        deadline = time.monotonic() + _SETTLE_TIMEOUT
        calm = 0
        while calm < _CALM and time.monotonic() < deadline:
            calm = calm + 1 if self.ask() < _SWIFT else 0

    def _check(self) -> None:
        for child in self._children:
            child.check()


@contextmanager
def web(kind: str, workers: int, broker: str) -> Iterator[Site]:
    """
    Run a web server and what it needs; yield it when it has answered.

    Raises:
        ServerFailed: A part ended, or did not get ready; with its log's last lines.
        RuntimeError: The first answer is none, or wrong.
    """
    with ExitStack() as exits, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        env = {**os.environ, "PYTHONPATH": str(_ROOT), "CELERY_BROKER_URL": broker}
        children = []
        if kind == "redis":
            command = [sys.executable, "-m", "bench.bert_model", str(workers)]
            children.append(
                exits.enter_context(ManagedProcess(command, folder / "workers.log", env=env))
            )
        number = listener.fileno()
        options = ["-b", f"fd://{number}", "--no-control-socket", "--log-level", "warning"]
        manner = _GREENLETS if kind == "redis" else _THREADS
        command = [
            sys.executable,
            "-m",
            "gunicorn",
            *options,
            *manner,
            f"bench.example_servers:{kind}()",
        ]
        server = ManagedProcess(command, folder / "web.log", env=env, pass_fds=[number])
        children.append(exits.enter_context(server))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        _await(url, children)
        if kind == "redis":
            wait_for_workers(RedisStreamer(broker, prefix=PREFIX).app, workers, children)
        site = Site(f"{url}/{'naive' if kind == 'naive' else 'stream'}", children)
        site.ask()
        yield site


def _await(url: str, children: list[ManagedProcess]) -> None:
    def why() -> str:
        reason = why_not(url)
        return "" if reason.startswith("404") else reason

    wait_until(why, children, what="web server", timeout=_READY_TIMEOUT)
