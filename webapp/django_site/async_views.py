"""The views under ASGI that wait for a model."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_POST

from celery_batch import apredict, as_lists
from webapp import tasks
from webapp.django_site.forms import files, inputs, sentences, timeout

__all__ = ["images", "naive", "predict_inputs", "stream"]


@require_POST
async def predict_inputs(request: HttpRequest) -> HttpResponse:
    """Return an output for each input."""
    outputs = await apredict(tasks.TASK, inputs(request), timeout=timeout(request))
    return JsonResponse({"outputs": as_lists(outputs)})


@require_POST
async def stream(request: HttpRequest) -> HttpResponse:
    """Return an output for each field ``s`` of a form."""
    outputs = await apredict(tasks.TASK, sentences(request), timeout=timeout(request))
    return JsonResponse(as_lists(outputs), safe=False)


@require_POST
async def naive(request: HttpRequest) -> HttpResponse:
    """Do the same without batches, to compare."""
    outputs = await apredict(tasks.NAIVE_TASK, sentences(request), timeout=timeout(request))
    return JsonResponse(as_lists(outputs), safe=False)


@require_POST
async def images(request: HttpRequest) -> HttpResponse:
    """Return an output for each uploaded file."""
    outputs = await apredict(tasks.IMAGE_TASK, files(request), timeout=timeout(request))
    return JsonResponse({"outputs": as_lists(outputs)})
