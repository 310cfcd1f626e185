"""
Any number of web processes, on any number of machines, ask workers through Redis.

    celery batch redis                        # if you have none; do as it says in the shells below
    python -m examples.infill_redis_workers
    gunicorn -k gevent -w 2 -b 127.0.0.1:5005 'examples.infill_redis:create_app()'
    curl 127.0.0.1:5005/stream --data-urlencode 's=Happy birthday to [MASK].'

The Redis is the one in CELERY_BROKER_URL, else the one at localhost:6379.
"""

from __future__ import annotations

import os

from flask import Flask, Response, jsonify, request

from celery_batch.streamer import RedisStreamer
from examples.web import new_app

__all__ = ["PREFIX", "REDIS", "create_app"]

REDIS = os.environ.get("CELERY_BROKER_URL", "localhost:6379")

#: Tells apart the models that share a Redis.
PREFIX = "infill"


def create_app() -> Flask:
    """Make the web server; it knows no model, and starts none."""
    app = new_app()
    streamer = RedisStreamer(REDIS, prefix=PREFIX)

    @app.post("/stream")
    def stream() -> Response:
        return jsonify(streamer.predict(request.form.getlist("s")))

    return app
