"""mosec with its msgpack and Redis mixins, for images: ``PORT REDIS_URL``."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from mosec import Server, Worker
from mosec.mixin import MsgpackMixin, RedisShmIPCMixin

from bench.models.reference import BATCH


class Read(MsgpackMixin, RedisShmIPCMixin, Worker):  # type: ignore[misc]
    """Make an array of the bytes of a request, and leave it in Redis for the model."""

    def forward(self, data: dict[str, Any]) -> Any:
        """Return the array of one request."""
        return np.frombuffer(data["bytes"], "f4").reshape(data["shape"])


class Mean(MsgpackMixin, RedisShmIPCMixin, Worker):  # type: ignore[misc]
    """Take the mean of each image."""

    def forward(self, data: list[Any]) -> list[float]:
        """Answer a batch."""
        return [float(each.mean()) for each in data]


if __name__ == "__main__":
    port, url = sys.argv[1:]
    # It reads its own command line.
    sys.argv[1:] = ["--address", "127.0.0.1", "--log-level", "error", "--port", port]
    RedisShmIPCMixin.set_redis_url(url)
    server = Server()
    server.append_worker(Read, num=1)
    server.append_worker(Mean, num=1, max_batch_size=BATCH, max_wait_time=1)
    server.run()
