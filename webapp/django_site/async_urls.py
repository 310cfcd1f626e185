"""The routes under ASGI: views that wait for a model are coroutines."""

from __future__ import annotations

from django.urls import path

from webapp import tasks
from webapp.django_site import async_views
from webapp.django_site.urls import handler400, handler404
from webapp.django_site.urls import urlpatterns as threaded

__all__ = ["handler400", "handler404", "urlpatterns"]

urlpatterns = [
    path("predict", async_views.predict_inputs),
    path("stream", async_views.stream),
]
if tasks.NAIVE_TASK:
    urlpatterns.append(path("naive", async_views.naive))
if tasks.IMAGE_TASK:
    urlpatterns.append(path("images", async_views.images))
urlpatterns += threaded
