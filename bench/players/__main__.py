"""
A player's program: ``python -m bench.players KIND MODEL WORKERS URL``.

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

from bench.players.plays import PLAYS

#: Where each is; imported when wanted, since no environment has them all.
KINDS = {
    "pure": "bench.players.pure:Pure",
    "ours": "bench.players.celeries:Ours",
    "our RedisStreamer": "bench.players.our_redis:OurRedis",
    "stock client": "bench.players.celeries:StockClient",
    "celery": "bench.players.celeries:PlainCelery",
    "celery-batches": "bench.players.celeries:CeleryBatches",
    "our ThreadedStreamer": "bench.players.our_streamers:OnOurThreads",
    "our Streamer": "bench.players.our_streamers:OnOurProcesses",
    "ThreadedStreamer": "bench.players.streamers:OnThreads",
    "Streamer": "bench.players.streamers:OnProcesses",
    "RedisStreamer": "bench.players.streamers:OnRedis",
}


def main() -> None:
    """Start, say so, answer commands."""
    kind, model, workers, url = sys.argv[1:]
    # Whatever prints must not disturb the conversation.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, _, name = KINDS[kind].partition(":")
    player = getattr(import_module(module), name)(model, int(workers), url)
    try:
        player.start()
        _say(replies, ready=os.getpid())
        for line in sys.stdin:
            _answer(player, json.loads(line), replies)
    finally:
        player.stop()


def _answer(player: Any, command: dict[str, Any], replies: TextIO) -> None:
    try:
        answer = PLAYS[command.pop("play")](player, **command)
    except Exception as error:  # noqa: BLE001 - whatever it is, who asked must hear of it
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"}
    _say(replies, **answer)


def _say(replies: TextIO, **answer: Any) -> None:
    replies.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
