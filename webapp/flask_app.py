"""The Flask app: ``gunicorn --threads 64 webapp.flask_app:app``."""

from __future__ import annotations

import math
from typing import Any
from uuid import UUID

from flask import Flask, Response, abort, json, request, url_for
from prometheus_flask_exporter import PrometheusMetrics
from werkzeug.exceptions import HTTPException

from celery_batch import predict
from celery_batch.web.flask import readiness_blueprint, register_error_handlers
from webapp import tasks
from webapp.stats import stats
from webapp.task_status import TaskStatus, task_status

app = Flask(__name__, static_folder=tasks.PAGE, static_url_path="/static")
app.config["MAX_CONTENT_LENGTH"] = tasks.MAX_BODY
app.register_blueprint(readiness_blueprint(tasks.app, [tasks.TASK]))
register_error_handlers(app)
PrometheusMetrics(app, group_by="url_rule")


@app.errorhandler(HTTPException)
def http_exception(error: HTTPException) -> Any:
    """Return Flask's own errors as JSON, too."""
    response = error.get_response()
    response.data = json.dumps({"error": {"type": error.name, "message": error.description}})
    response.content_type = "application/json"
    return response


def timeout() -> float:
    """Return the seconds that the client waits, at most ours."""
    try:
        wanted = float(request.headers.get("X-Timeout", tasks.TIMEOUT))
    except ValueError:
        abort(400, "X-Timeout must be a number of seconds.")
    if not 0 < wanted < math.inf:
        abort(400, "X-Timeout must be above 0.")
    return min(wanted, tasks.TIMEOUT)


def checked(inputs: Any) -> list[Any]:
    """Return the inputs of a request, if they are a list and not too many."""
    if not (isinstance(inputs, list) and 1 <= len(inputs) <= tasks.MAX_INPUTS):
        abort(422, f"A request has a list of 1 to {tasks.MAX_INPUTS} inputs.")
    return inputs


def field(name: str) -> Any:
    """Return a field of a JSON object in the body."""
    try:
        body = request.get_json()
    except RecursionError:
        abort(400, "The body is nested too deeply.")
    if not (isinstance(body, dict) and name in body):
        abort(422, f'The body must be a JSON object with "{name}".')
    return body[name]


def form_field(name: str) -> list[str]:
    """Return a field's values in the form that is the body."""
    # Werkzeug silently cuts a form that comes in chunks and is too large.
    if len(request.get_data()) >= tasks.MAX_BODY:
        abort(413)
    return request.form.getlist(name)


@app.post("/predict")
def predict_inputs() -> dict[str, Any]:
    """Return an output for each input."""
    inputs = checked(field("inputs"))
    return {"outputs": predict(tasks.TASK, inputs, timeout=timeout())}


@app.post("/stream")
def stream() -> list[Any]:
    """Return an output for each field ``s`` of a form."""
    return predict(tasks.TASK, checked(form_field("s")), timeout=timeout())


if tasks.NAIVE_TASK:

    @app.post("/naive")
    def naive() -> list[Any]:
        """Do the same without batches, to compare."""
        return predict(tasks.NAIVE_TASK, checked(form_field("s")), timeout=timeout())


if tasks.IMAGE_TASK:

    @app.post("/images")
    def images() -> dict[str, Any]:
        """Return an output for each uploaded file."""
        files = checked([each.read() for each in request.files.getlist("image")])
        if any(len(each) > tasks.MAX_IMAGE for each in files):
            abort(413)
        return {"outputs": predict(tasks.IMAGE_TASK, files, timeout=timeout())}


@app.post("/tasks")
def send() -> tuple[dict[str, str], int, dict[str, str]]:
    """Send a call, and return its id at once."""
    result = tasks.TASK.delay(field("input"))
    url = url_for("state", task_id=result.id)
    return {"id": result.id, "url": url}, 202, {"Location": url}


@app.get("/tasks/<uuid:task_id>")
def state(task_id: UUID) -> TaskStatus:
    """Return a call's state, and its output once it has one."""
    return task_status(task_id)


@app.delete("/tasks/<uuid:task_id>")
def revoke(task_id: UUID) -> TaskStatus:
    """Revoke a call that has not begun."""
    tasks.TASK.AsyncResult(str(task_id)).revoke()
    return task_status(task_id)


@app.get("/stats")
def get_stats() -> dict[str, Any]:
    """Return what the workers do at this moment."""
    return {**stats()}


@app.get("/healthz")
def healthz() -> dict[str, bool]:
    """Answer while the process lives."""
    return {"ok": True}


@app.get("/")
def page() -> Response:
    """Return the page."""
    response = app.send_static_file("index.html")
    response.headers["Content-Security-Policy"] = tasks.CSP
    return response
