"""
Step 1, naive: every request runs the model by itself.

    flask --app examples.infill_naive run --port 5005
    curl 127.0.0.1:5005/naive --data-urlencode 's=Happy birthday to [MASK].'
"""

from __future__ import annotations

from threading import Lock

from flask import Flask, Response, jsonify, request

from celery_batch import Model
from celery_batch.runtime.devices import discover
from examples.web import new_app
from workers.models.infilling import TextInfilling

__all__ = ["create_app"]


def create_app(model: type[Model] = TextInfilling) -> Flask:
    """
    Make the web server, its model loaded.

    Args:
        model: What answers.
    """
    app = new_app()
    filler = model()
    filler.load(discover()[0])
    one_at_a_time = Lock()

    @app.post("/naive")
    def naive() -> Response:
        sentences = request.form.getlist("s")
        with one_at_a_time:
            words = filler.predict(sentences)
        for word in words:
            if isinstance(word, Exception):
                raise word
        return jsonify(words)

    return app
