"""The routes that say how the service is: for orchestrators, not for people."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from webapp.errors import BrokerUnreachable, NoWorker
from webapp.messages import Answer
from webapp.readiness import LISTEN, Prober
from webapp.routes import Route, Visit

__all__ = ["Probes"]


class Probes:
    """
    Whether this process lives, and whether workers do.

    Args:
        prober: Asks the workers.
        tasks: The names of the tasks that have to be served.
    """

    def __init__(self, prober: Prober, tasks: Sequence[str]) -> None:
        self._prober = prober
        self._tasks = tasks

    def routes(self) -> list[Route]:
        """Return these routes."""
        return [Route("GET", "/healthz", self.health), Route("GET", "/readyz", self.ready)]

    async def health(self, _visit: Visit) -> Answer:
        """Say that this process lives, and nothing about others."""
        return Answer(body={"status": "ok"})

    async def ready(self, visit: Visit) -> Answer:
        """Say whether a worker with a warm model answers for each of the tasks."""
        probe = self._prober.start()
        with suppress(TimeoutError):
            # Not in a thread of the executor: anybody may ask, and requests are sent there.
            await visit.way.done(probe.settled(self._tasks), time.monotonic() + LISTEN)
        census = probe.census()
        if not census.reached:
            raise BrokerUnreachable("the broker does not answer")
        if cold := census.cold(self._tasks):
            raise NoWorker(f"no worker with a warm model answers for {' and '.join(cold)}")
        workers = {task: list(census.warm[task]) for task in self._tasks}
        return Answer(body={"status": "ready", "workers": workers})
