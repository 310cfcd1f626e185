"""service-streamer behind Flask's threaded server, as its own example has it: ``PORT``."""

from __future__ import annotations

import logging
import sys

from flask import Flask, jsonify, request
from flask.typing import ResponseReturnValue
from service_streamer import ThreadedStreamer

from bench.models.reference import BATCH, MODELS

app = Flask(__name__)
streamer = ThreadedStreamer(MODELS["cost"], BATCH, 0.1)


@app.post("/stream")
def stream() -> ResponseReturnValue:
    """Answer the numbers of the form field ``s``."""
    return jsonify(streamer.predict([int(number) for number in request.form.getlist("s")]))


if __name__ == "__main__":
    for name in ("werkzeug", "service_streamer.service_streamer"):
        logging.getLogger(name).setLevel(logging.ERROR)
    app.run(port=int(sys.argv[1]), threaded=True)
