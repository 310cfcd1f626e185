"""The routes under WSGI, where each request has a thread or a greenlet."""

from __future__ import annotations

from django.urls import path
from django_prometheus.exports import ExportToDjangoView

from celery_batch.web.django import readiness_view
from webapp import tasks
from webapp.django_site import views

urlpatterns = [
    path("predict", views.predict_inputs),
    path("stream", views.stream),
    path("tasks", views.send),
    path("tasks/<uuid:task_id>", views.TaskView.as_view(), name="task"),
    path("stats", views.get_stats),
    path("healthz", views.healthz),
    path("readyz", readiness_view(tasks.app, [tasks.TASK])),
    path("metrics", ExportToDjangoView),
    path("", views.page),
]

if tasks.NAIVE_TASK:
    urlpatterns.append(path("naive", views.naive))
if tasks.IMAGE_TASK:
    urlpatterns.append(path("images", views.images))

handler400 = views.bad_request
handler404 = views.not_found
