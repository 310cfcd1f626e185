"""The pressed service: a Redis, a worker, and doors that are opened when asked for."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from pathlib import Path

from celery import Celery
from web_door import Door
from web_pressed import command
from web_pressed_tasks import BATCH, GO, SEEN

from celery_batch.cli.child import Child, wait_until

HERE = str(Path(__file__).parent)

#: Seconds that each batch takes, and so the most answers a second.
SECONDS = 0.2
CAPACITY = BATCH / SECONDS


class Pressed:
    """The pressed service: a Redis, a worker, and doors that are opened when asked for."""

    def __init__(self, servers, running, *, seconds=SECONDS, **environ):
        self.servers = servers
        self._seconds = seconds
        self._environ = {"WEBAPP_MAX_QUEUE": "16", **environ}
        self._running = running
        self._doors = {}
        self.redis = servers.client()
        self.worker = self.start_worker()

    def start_worker(self):
        """Start a worker with one pool process."""
        options = ("-c1", "--without-mingle", "--without-gossip")
        environ = {**self._environ, "PRESSED_SECONDS": str(self._seconds)}
        environ |= python_path(self.servers)
        context = self.servers.worker("web_pressed_tasks", options, **environ)
        worker = self._running.enter_context(context)
        why = lambda: "" if " ready." in worker.log.read_text() else "starts"  # noqa: E731
        wait_until(why, [worker], what="the pressed worker", timeout=90)
        return worker

    def door(self, kind):
        """Return a door, ready."""
        if kind not in self._doors:
            self._doors[kind] = self._running.enter_context(
                open_door(self.servers, kind, **self._environ)
            )
        return self._doors[kind]

    def seen(self):
        """Return what the model has seen so far."""
        return self.redis.lrange(SEEN, 0, -1)

    def until_seen(self, text):
        """Wait until the model has seen an input."""
        wait_until(
            lambda: "" if text in self.seen() else f"it saw {len(self.seen())}",
            [self.worker],
            what=f"{text!r} to reach the model",
            timeout=60,
        )

    def let_go(self):
        """Have the model answer a batch that waits until it is told."""
        self.redis.rpush(GO, "go")

    def ask(self, question):
        """Return what the worker answers to one of its control commands."""
        name = f"{self.worker.log.stem}@test"
        asking = Celery(broker=self.servers.redis.url).control
        (answers,) = asking.broadcast(
            question, destination=[name], reply=True, timeout=10, limit=1
        ) or [{}]
        return answers.get(name)

    def until_answered(self, question, is_so):
        """Wait until the worker gives an answer that will do."""
        wait_until(
            lambda: "" if is_so(self.ask(question) or {}) else "not yet",
            [self.worker],
            what=question,
            timeout=60,
        )

    def until_held(self, *, running, waiting):
        """Wait until the worker has so many batches on their way, and requests in line."""
        wanted = {"running": running, "waiting": waiting}
        self.until_answered(
            "batch_status",
            lambda lanes: wanted.items() <= lanes.get("pressed.answer", {}).items(),
        )


def python_path(servers):
    """Return where Python finds the service's modules, and which contract is meant."""
    folders = [HERE, servers.environ({})["PYTHONPATH"]]
    return {"PYTHONPATH": os.pathsep.join(folders), "WEBAPP_CONTRACT": "web_pressed:contract"}


@contextmanager
def open_door(servers, kind, **environ):
    """Run a door on its server; wait until it is ready."""
    environ = {**python_path(servers), **environ}
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        # Inherited by connections; uvicorn does not do it itself for a socket that it is given.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = command(kind, listener.fileno())
        environment = servers.environ(environ)
        log = servers.logs / f"{kind}-pressed-{listener.getsockname()[1]}.log"
        with Child(line, log, env=environment, pass_fds=[listener.fileno()]) as child:
            door = Door(listener.getsockname()[1], child)
            door.until("/readyz")
            yield door
