"""The views under WSGI, and those that wait for no model."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.views import View
from django.views.decorators.http import require_GET, require_POST

from celery_batch import as_lists, predict
from webapp import tasks
from webapp.django_site.forms import files, inputs, json_field, sentences, timeout
from webapp.stats import stats
from webapp.task_status import task_status

__all__ = [
    "TaskView",
    "bad_request",
    "get_stats",
    "healthz",
    "images",
    "naive",
    "not_found",
    "page",
    "predict_inputs",
    "send",
    "stream",
]


def bad_request(_request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return what is wrong with a request as JSON."""
    error = {"type": "BadRequest", "message": str(exception)}
    return JsonResponse({"error": error}, status=400)


def not_found(_request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001
    """Return JSON for an unknown path."""
    error = {"type": "NotFound", "message": "There is nothing at this path."}
    return JsonResponse({"error": error}, status=404)


@require_POST
def predict_inputs(request: HttpRequest) -> HttpResponse:
    """Return an output for each input."""
    outputs = predict(tasks.TASK, inputs(request), timeout=timeout(request))
    return JsonResponse({"outputs": as_lists(outputs)})


@require_POST
def stream(request: HttpRequest) -> HttpResponse:
    """Return an output for each field ``s`` of a form."""
    outputs = predict(tasks.TASK, sentences(request), timeout=timeout(request))
    return JsonResponse(as_lists(outputs), safe=False)


@require_POST
def naive(request: HttpRequest) -> HttpResponse:
    """Do the same without batches, to compare."""
    outputs = predict(tasks.NAIVE_TASK, sentences(request), timeout=timeout(request))
    return JsonResponse(as_lists(outputs), safe=False)


@require_POST
def images(request: HttpRequest) -> HttpResponse:
    """Return an output for each uploaded file."""
    outputs = predict(tasks.IMAGE_TASK, files(request), timeout=timeout(request))
    return JsonResponse({"outputs": as_lists(outputs)})


@require_POST
def send(request: HttpRequest) -> HttpResponse:
    """Send a call, and return its id at once."""
    result = tasks.TASK.delay(json_field(request, "input"))
    url = reverse("task", args=[result.id])
    return JsonResponse({"id": result.id, "url": url}, status=202, headers={"Location": url})


class TaskView(View):
    """One call, by its id."""

    def get(self, _request: HttpRequest, task_id: UUID) -> HttpResponse:
        """Return the call's state, and its output once it has one."""
        return JsonResponse(task_status(task_id))

    def delete(self, request: HttpRequest, task_id: UUID) -> HttpResponse:
        """Revoke the call if it has not begun."""
        tasks.TASK.AsyncResult(str(task_id)).revoke()
        return self.get(request, task_id)


@require_GET
def get_stats(_request: HttpRequest) -> HttpResponse:
    """Return what the workers do at this moment."""
    return JsonResponse(stats())


@require_GET
def healthz(_request: HttpRequest) -> HttpResponse:
    """Answer while the process lives."""
    return JsonResponse({"ok": True})


@require_GET
def page(_request: HttpRequest) -> HttpResponse:
    """Return the page."""
    headers = {"Content-Security-Policy": tasks.CSP}
    return HttpResponse((tasks.PAGE / "index.html").read_bytes(), headers=headers)
