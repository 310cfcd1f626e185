"""The web server on Redis: gunicorn with gevent, and workers of its own."""

from __future__ import annotations

import os
import socket
import sys

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from demo.http_client import why_not
from demo.load import Question, run_load
from tests.services.setup import ROOT

QUESTIONS = [Question(f"[MASK] number {each}", f"[MASK] NUMBER {each}") for each in range(200)]


def test_greenlets_ask_workers_through_redis(broker, tmp_path):
    """Two web processes of greenlets answer a crowd with what workers elsewhere say."""
    env = {**os.environ, "CELERY_BROKER_URL": broker, "PYTHONPATH": str(ROOT)}
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        number, url = listener.fileno(), f"http://127.0.0.1:{listener.getsockname()[1]}"
        options = ["-k", "gevent", "-w", "2", "-b", f"fd://{number}", "--no-control-socket"]
        command = [sys.executable, "-m", "gunicorn", *options, "examples.infill_redis:create_app()"]
        workers = [sys.executable, "-m", "tests.apps.models.shout"]
        with (
            ManagedProcess(workers, tmp_path / "workers.log", env=env) as workers,
            ManagedProcess(command, tmp_path / "web.log", env=env, pass_fds=[number]) as web,
        ):
            children = [workers, web]
            wait_until(lambda: _unless_404(why_not(url)), children, what="web", timeout=60)

            def ask(questions, clients):
                load = run_load(
                    f"{url}/stream",
                    questions,
                    clients=clients,
                    check=lambda: [child.check() for child in children],
                )
                return [*load.errors, *(child.tail() for child in children)] * bool(load.errors)

            # Alone, until the workers are there; then the crowd.
            assert [] == ask(QUESTIONS[:1], 1)
            assert [] == ask(QUESTIONS, 32)


def _unless_404(reason: str) -> str:
    return "" if reason.startswith("404") else reason
