"""
Image classification: pictures are uploaded, and those of many clients share a run of the model.

    flask --app examples.classify run --port 5005
    curl 127.0.0.1:5005/stream -F file=@cat.jpg -F file=@dog.png

The weights are random unless you name torchvision's file, see image_classifier.py:

    RESNET_WEIGHTS=resnet18-f37072fd.pth flask --app examples.classify run --port 5005
"""

from __future__ import annotations

from flask import Flask, Response, jsonify, request

from celery_batch import Model
from celery_batch.streamer import ThreadedStreamer
from examples.image_classifier import ImageClassifier
from examples.web import new_app

__all__ = ["create_app"]


def create_app(model: type[Model] = ImageClassifier) -> Flask:
    """
    Make the web server; with Streamer in place of ThreadedStreamer the model has its own process.

    Args:
        model: What answers.
    """
    app = new_app()
    streamer = ThreadedStreamer(model, batch_size=64, max_latency=0.1)

    @app.post("/stream")
    def stream() -> Response:
        files = [file.read() for file in request.files.getlist("file")]
        return jsonify(streamer.predict(files))

    return app
