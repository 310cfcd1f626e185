"""LitServe, with its own batching: ``PORT PROCESSES``."""

from __future__ import annotations

import sys
from typing import Any

import litserve

from bench.models.reference import BATCH, MODELS


class Doubling(litserve.LitAPI):  # type: ignore[misc]
    """A reference model behind LitServe's interface."""

    def setup(self, device: str) -> None:
        """Need nothing."""

    def decode_request(self, request: dict[str, int]) -> int:
        """Return the item of a request."""
        return request["x"]

    def predict(self, x: list[int]) -> list[int]:
        """Answer a batch."""
        return MODELS["cost"](x)

    def encode_response(self, output: int) -> dict[str, Any]:
        """Return what is sent back."""
        return {"y": output}


if __name__ == "__main__":
    api = Doubling(max_batch_size=BATCH, batch_timeout=0.01)
    server = litserve.LitServer(api, accelerator="cpu", timeout=60)
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        num_api_servers=int(sys.argv[2]),
        log_level="warning",
        generate_client_file=False,
    )
