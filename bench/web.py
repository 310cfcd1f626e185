"""The examples' web servers, run for a measurement as their documents say."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.sleeper import expected
from celery_batch.cli.child import Child, wait_until
from deploy.local.browser import why_not
from deploy.local.load import Question, run_load

__all__ = ["CLIENTS", "web"]

_ROOT = Path(__file__).parents[1]

#: Clients for each worker: a batch is in the model, and the next one fills.
CLIENTS = 128

#: Seconds a part gets to be ready, beside others that get ready.
_READY_TIMEOUT = 60.0

_SENTENCE = "Happy birthday to [MASK]."

_THREADS = ("-k", "gthread", "-w", "1", "--threads", str(CLIENTS + 16))
_GREENLETS = ("-k", "gevent", "-w", "2")


@contextmanager
def web(kind: str, workers: int, broker: str) -> Iterator[str]:
    """
    Run a web server and what it needs; yield its address when it has answered.

    Args:
        kind: A name in `bench.shows.APPS`.
        workers: How many processes hold a model, where there are any.
        broker: The Redis.

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
            command = [sys.executable, "-m", "bench.shows", str(workers)]
            children.append(exits.enter_context(Child(command, folder / "workers.log", env=env)))
        number = listener.fileno()
        options = ["-b", f"fd://{number}", "--no-control-socket", "--log-level", "warning"]
        manner = _GREENLETS if kind == "redis" else _THREADS
        command = [sys.executable, "-m", "gunicorn", *options, *manner, f"bench.shows:{kind}()"]
        server = Child(command, folder / "web.log", env=env, pass_fds=[number])
        children.append(exits.enter_context(server))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        _await(url, children)
        place = f"{url}/{'naive' if kind == 'naive' else 'stream'}"
        _ask(place, children)
        yield place


def _await(url: str, children: list[Child]) -> None:
    def why() -> str:
        reason = why_not(url)
        return "" if reason.startswith("404") else reason

    wait_until(why, children, what="web server", timeout=_READY_TIMEOUT)


def _ask(url: str, children: list[Child]) -> None:
    question = Question(_SENTENCE, expected(_SENTENCE))

    def check() -> None:
        for child in children:
            child.check()

    load = run_load(url, [question], clients=1, check=check)
    if load.errors:
        tails = [child.tail() for child in children]
        raise RuntimeError("\n".join([f"{url}: {load.errors[0]}", *tails]))
