"""The Celery app of the Django site, and its tasks."""

from __future__ import annotations

import os

from celery import shared_task

from celery_batch import BatchTask
from tests.apps.small_app import remember, small_app

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.apps.sites.django_site")
app = small_app("djangosite", config="django.conf:settings")


@shared_task(base=BatchTask, name="djangosite.count")
def count(x):
    """Ask the database, and remember whether its connection was closed before."""
    from django.db import connection  # noqa: PLC0415 (after Django has been set up)

    remember("open", connection.connection is not None)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 42")
        (number,) = cursor.fetchone()
    for one in x:
        remember("counted", one)
    return [ValueError("bad") if one == "bad" else number + one for one in x]
