"""A web site that asks streamers of its own, made and used before it is forked."""

from __future__ import annotations

import json
import os
from urllib.parse import parse_qsl

from celery_batch.streamer import Streamer, ThreadedStreamer
from tests.apps.models.streamer_models import play

streamers = [ThreadedStreamer(play, 8), Streamer(play, 8, wait_for_worker_ready=True)]
first = [os.getpid(), *(streamer.predict(["before"])[0] for streamer in streamers)]


def _page(answers):
    pids = [os.getpid(), streamers[1].predict(["pid"])[0]]
    return json.dumps({"answers": answers, "first": first, "pids": pids}).encode()


def wsgi(environ, start_response):
    """Answer the items of a query."""
    items = [value for _, value in parse_qsl(environ["QUERY_STRING"])]
    page = _page([streamer.predict(items) for streamer in streamers])
    start_response("200 OK", [("Content-Type", "application/json")])
    return [page]


async def asgi(scope, _receive, send):
    """Answer the items of a query."""
    items = [value for _, value in parse_qsl(scope["query_string"].decode())]
    page = _page([await streamer.apredict(items) for streamer in streamers])
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": page})
