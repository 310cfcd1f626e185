"""A web application over WSGI and ASGI, its streamer made and used before any fork."""

import json
import os
from urllib.parse import parse_qs

from celery_batch import RedisStreamer

streamer = RedisStreamer(prefix="lab", worker_timeout=60)
first = [os.getpid(), *streamer.predict(["before"])]


def answer(outputs):
    """Return a body that says who answers."""
    return json.dumps({"first": first, "pid": os.getpid(), "outputs": outputs}).encode()


def wsgi(environ, start_response):
    """Answer as Flask would."""
    outputs = streamer.predict(parse_qs(environ["QUERY_STRING"])["s"])
    start_response("200 OK", [("Content-Type", "application/json")])
    return [answer(outputs)]


async def asgi(scope, _receive, send):
    """Answer as an asynchronous framework would."""
    if scope["type"] != "http":
        return
    outputs = await streamer.apredict(parse_qs(scope["query_string"].decode())["s"])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": answer(outputs)})
