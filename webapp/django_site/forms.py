"""What a request has to hold."""

from __future__ import annotations

import json
import math
from typing import Any

from django.core.exceptions import BadRequest, RequestDataTooBig
from django.http import HttpRequest

from webapp import tasks

__all__ = ["files", "inputs", "json_field", "sentences", "timeout"]


def timeout(request: HttpRequest) -> float:
    """Return the seconds that the client waits, at most ours."""
    try:
        wanted = float(request.headers.get("X-Timeout", tasks.TIMEOUT))
    except ValueError as error:
        raise BadRequest("X-Timeout must be a number of seconds.") from error
    if not 0 < wanted < math.inf:
        raise BadRequest("X-Timeout must be above 0.")
    return min(wanted, tasks.TIMEOUT)


def json_field(request: HttpRequest, name: str) -> Any:
    """Return a field of a JSON object in the body."""
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise BadRequest("The body is not JSON.") from error
    if not (isinstance(body, dict) and name in body):
        raise BadRequest(f'The body must be a JSON object with "{name}".')
    return body[name]


def inputs(request: HttpRequest) -> list[Any]:
    """Return the inputs of a JSON body."""
    return _checked(json_field(request, "inputs"))


def sentences(request: HttpRequest) -> list[str]:
    """Return the fields ``s`` of a form."""
    _check_length(request)
    return _checked(request.POST.getlist("s"))


def files(request: HttpRequest) -> list[bytes]:
    """Return the contents of the uploaded files."""
    _check_length(request)
    uploads = request.FILES.getlist("image")
    if any((each.size or 0) > tasks.MAX_IMAGE for each in uploads):
        raise BadRequest(f"An image may have {tasks.MAX_IMAGE} bytes.")
    return _checked([each.read() for each in uploads])


def _check_length(request: HttpRequest) -> None:
    """Refuse a form before Django writes its files to the disk, as many as there are."""
    if int(request.headers.get("Content-Length") or 0) > tasks.MAX_BODY:
        raise RequestDataTooBig(f"A body may have {tasks.MAX_BODY} bytes.")


def _checked(values: Any) -> list[Any]:
    if not (isinstance(values, list) and 1 <= len(values) <= tasks.MAX_INPUTS):
        raise BadRequest(f"A request has a list of 1 to {tasks.MAX_INPUTS} inputs.")
    return values
