"""mosec, whose front is written in Rust and which has no broker: ``PORT``."""

from __future__ import annotations

import sys

from mosec import Server, Worker

from bench.models.reference import BATCH, MODELS


class Doubling(Worker):  # type: ignore[misc]
    """A reference model behind mosec's interface."""

    def forward(self, data: list[dict[str, int]]) -> list[dict[str, int]]:
        """Answer a batch."""
        return [{"y": output} for output in MODELS["cost"]([each["x"] for each in data])]


if __name__ == "__main__":
    # It reads its own command line.
    sys.argv[1:1] = ["--address", "127.0.0.1", "--log-level", "error", "--port"]
    server = Server()
    server.append_worker(Doubling, num=1, max_batch_size=BATCH, max_wait_time=10)
    server.run()
