"""Where a trial is played: servers, proxy, workers and callers, all real."""

from __future__ import annotations

import json
import os
import struct
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kombu import pools

from tests.faults.answers import Answers
from tests.faults.brokers import Broker, RabbitMQBroker, RedisBroker
from tests.faults.clients import Clients
from tests.faults.ledger import Ledger
from tests.faults.proxy import Proxy
from tests.faults.supervised_worker import SupervisedWorker
from tests.services.servers.rabbitmq import RabbitMQServer

__all__ = ["Needs", "Setup"]

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Needs:
    """
    What a fault wants of the setup.

    Args:
        workers: How many.
        proxy: What is behind a proxy: "", "broker" or "results".
        conf: Settings of callers and workers.
        stepping_clock: The workers' wall clock can be made to step.
        seconds_per_item: The model's time.
    """

    workers: int = 1
    proxy: str = ""
    conf: dict[str, Any] = field(default_factory=dict)
    stepping_clock: bool = False
    seconds_per_item: float = 0.005


class Setup:
    """
    Everything a trial runs on, up and ready inside its ``with`` block.

    Args:
        needs: Of the fault.
        folder: For data and logs of this trial alone; its path must be short.
        rabbitmq: A running server, if that is to be the broker.
        patience: Seconds a caller tries to send.
        processes: Pool processes of each worker.
        task: "plain", "options" or "requests": what kind of task it is.
    """

    def __init__(
        self,
        needs: Needs,
        folder: Path,
        rabbitmq: RabbitMQServer | None,
        patience: float,
        processes: int,
        *,
        task: str = "plain",
    ) -> None:
        self.needs = needs
        self._processes = processes
        self._task = task
        self.folder = folder
        self._rabbitmq = rabbitmq
        self._patience = patience
        self._stack = ExitStack()
        self.ledger = Ledger(folder / "ledger")
        self._clock = folder / "clock"
        self.workers: list[SupervisedWorker] = []
        #: Pool processes whose running items a fault has harmed.
        self.victims: set[int] = set()

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)

    def pool(self) -> list[int]:
        """Return the ids of all pool processes."""
        return [pid for worker in self.workers for pid in worker.pool()]

    def step_clock(self, seconds: float) -> None:
        """Have the workers' wall clock differ from the machine's by this much."""
        with self._clock.open("r+b" if self._clock.exists() else "wb") as clock:
            clock.write(struct.pack("d", seconds))

    def settle(self, timeout: float) -> None:
        """Wait until the broker holds nothing any more, or the time is up."""
        deadline = time.monotonic() + timeout
        while self.broker.left() and time.monotonic() < deadline:
            time.sleep(0.1)

    def payloads(self) -> dict[str, int]:
        """Return the seconds until each large array that is still stored expires."""
        with self.results.connect() as client:
            keys = list(client.scan_iter("celery-batch-payload-*"))
            return {key.decode(): int(client.ttl(key)) for key in keys}

    def stop_workers(self) -> None:
        """Stop the workers, which give back what they hold."""
        for worker in self.workers:
            worker.stop()

    def _open(self) -> None:
        self.broker: Broker = self._open_broker()
        keeps_results = isinstance(self.broker, RedisBroker) and self.needs.proxy != "results"
        self.results = self.broker if keeps_results else self._redis("results")
        self.proxy = self._open_proxy()
        behind = {self.needs.proxy: self.proxy.port} if self.proxy else {}
        broker_url = self.broker.url(behind.get("broker"))
        results_url = self.results.url(behind.get("results"))
        conf = {
            **self.broker.conf,
            "batch_payload_store": results_url,
            "batch_payload_expires": 600.0,
            **self.needs.conf,
        }
        self.answers = self._stack.enter_context(Answers(self.results.connect))
        env = self._environment({**conf, "broker_url": broker_url, "result_backend": results_url})
        self.workers = [
            SupervisedWorker(f"w{number}", self.folder, env, self._processes)
            for number in range(1, self.needs.workers + 1)
        ]
        for worker in self.workers:
            self._stack.callback(worker.stop)
            worker.launch()
        for worker in self.workers:
            worker.wait()
        self.clients = Clients(
            broker_url, conf, self._patience, with_arrays=self._task != "requests"
        )
        self._stack.callback(pools.reset)
        self._stack.callback(self.clients.app.close)

    def _open_broker(self) -> Broker:
        if self._rabbitmq is None:
            return self._redis("redis")
        broker = RabbitMQBroker(self._rabbitmq)
        self._stack.callback(broker.close)
        return broker

    def _redis(self, name: str) -> RedisBroker:
        server = RedisBroker(self.folder / name)
        self._stack.callback(server.close)
        return server

    def _open_proxy(self) -> Proxy | None:
        if not self.needs.proxy:
            return None
        behind = self.broker if self.needs.proxy == "broker" else self.results
        return self._stack.enter_context(Proxy(behind.port))

    def _environment(self, conf: dict[str, Any]) -> dict[str, str]:
        env = {
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "PYTHONUNBUFFERED": "1",
            "FAULTS_CONF": json.dumps(conf),
            "FAULTS_LEDGER": str(self.ledger.path),
            "FAULTS_TASK": self._task,
            "FAULTS_SECONDS_PER_ITEM": str(self.needs.seconds_per_item),
        }
        if self.needs.stepping_clock:
            self.step_clock(0.0)
            env["PYTHONPATH"] = f"{Path(__file__).parent / 'clock'}:{_ROOT}"
            env["FAULTS_CLOCK"] = str(self._clock)
        return env
