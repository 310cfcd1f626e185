"""
A system's program: ``python -m bench.systems KIND MODEL WORKERS URL``.

It starts its workers and then answers lines of JSON, a command each, until its
standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from typing import Any, TextIO

from bench.systems.measurements import MEASUREMENTS

#: Where each is; imported when wanted, since no environment has them all.
KINDS = {
    "pure": "bench.systems.pure:Pure",
    "ours": "bench.systems.celeries:Ours",
    "our RedisStreamer": "bench.systems.our_streamers:OnOurRedis",
    "stock client": "bench.systems.celeries:StockClient",
    "celery": "bench.systems.celeries:PlainCelery",
    "celery-batches": "bench.systems.celeries:CeleryBatches",
    "celery_batch.batches": "bench.systems.celeries:OurBatches",
    "our ThreadedStreamer": "bench.systems.our_streamers:OnOurThreads",
    "our Streamer": "bench.systems.our_streamers:OnOurProcesses",
    "ThreadedStreamer": "bench.systems.streamers:OnThreads",
    "Streamer": "bench.systems.streamers:OnProcesses",
    "RedisStreamer": "bench.systems.streamers:OnRedis",
}


def main() -> None:
    """Start, say so, answer commands."""
    kind, model, workers, url = sys.argv[1:]
    # Whatever prints must not disturb the conversation.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, _, name = KINDS[kind].partition(":")
    system = getattr(import_module(module), name)(model, int(workers), url)
    try:
        system.start()
        _say(replies, ready=os.getpid())
        for line in sys.stdin:
            _answer(system, json.loads(line), replies)
    finally:
        system.stop()


def _answer(system: Any, command: dict[str, Any], replies: TextIO) -> None:
    try:
        answer = MEASUREMENTS[command.pop("measurement")](system, **command)
    except Exception as error:  # noqa: BLE001 - the caller reports it
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"}
    _say(replies, **answer)


def _say(replies: TextIO, **answer: Any) -> None:
    replies.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
