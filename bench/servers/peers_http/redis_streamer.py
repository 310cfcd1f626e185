"""
service-streamer's RedisStreamer behind Flask, for several processes of gunicorn.

``BENCH_REDIS`` has the URL of Redis; `bench.systems.redis_streamer_worker` has the model.
"""

from __future__ import annotations

import os

from flask import Flask, jsonify, request
from flask.typing import ResponseReturnValue
from service_streamer import RedisStreamer

from bench.systems.streamers import address, meet

meet(os.environ["BENCH_REDIS"])

app = Flask(__name__)
streamer = RedisStreamer(address(os.environ["BENCH_REDIS"]))


@app.post("/stream")
def stream() -> ResponseReturnValue:
    """Answer the numbers of the form field ``s``."""
    return jsonify(streamer.predict([int(number) for number in request.form.getlist("s")]))
