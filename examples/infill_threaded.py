r"""
Step 2, threaded: requests that come at the same time share a run of the model.

    flask --app examples.infill_threaded run --port 5005
    curl 127.0.0.1:5005/stream --data-urlencode 's=Happy birthday to [MASK].'

For a crowd take a stronger server, with one process, and a thread for each client:

    gunicorn -k gthread --threads 128 -b 127.0.0.1:5005 \
        'examples.infill_threaded:create_app()'
"""

from __future__ import annotations

from flask import Flask, Response, jsonify, request

from celery_batch import Model
from celery_batch.streamer import ThreadedStreamer
from examples.web import new_app
from workers.models.infilling import TextInfilling

__all__ = ["create_app"]


def create_app(model: type[Model] = TextInfilling) -> Flask:
    """
    Make the web server, its model in a thread of the same process.

    Args:
        model: What answers.
    """
    app = new_app()
    streamer = ThreadedStreamer(model, batch_size=64, max_latency=0.1)

    @app.post("/stream")
    def stream() -> Response:
        return jsonify(streamer.predict(request.form.getlist("s")))

    return app
