r"""
Step 3, multi-process: the models have processes of their own, and the web server its own.

    flask --app examples.infill_processes run --port 5005
    curl 127.0.0.1:5005/stream --data-urlencode 's=Happy birthday to [MASK].'

For a crowd take a stronger server, with one process, and a thread for each client.
Here it also has two models; on a machine with GPUs say which: cuda_devices=(0, 1).

    gunicorn -k gthread --threads 128 -b 127.0.0.1:5005 \
        'examples.infill_processes:create_app(worker_num=2)'
"""

from __future__ import annotations

from flask import Flask, Response, jsonify, request

from celery_batch import Model
from celery_batch.streamer import Streamer
from examples.web import new_app
from workers.models.infilling import TextInfilling

__all__ = ["create_app"]


def create_app(
    model: type[Model] = TextInfilling,
    worker_num: int = 1,
    cuda_devices: tuple[int, ...] | None = None,
) -> Flask:
    """
    Make the web server and start the models' processes.

    Args:
        model: What answers.
        worker_num: How many processes hold a model.
        cuda_devices: The GPUs that they share, by number.
    """
    app = new_app()
    streamer = Streamer(
        model, batch_size=64, max_latency=0.1, worker_num=worker_num, cuda_devices=cuda_devices
    )

    @app.post("/stream")
    def stream() -> Response:
        return jsonify(streamer.predict(request.form.getlist("s")))

    return app
