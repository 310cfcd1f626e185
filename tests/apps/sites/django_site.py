"""A Django site: its settings, its Celery app and its tasks, all in one module."""

from __future__ import annotations

import os

SECRET_KEY = "only for tests"  # noqa: S105 (it guards nothing)
INSTALLED_APPS = ["django_celery_results"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SMALL_APP_DATABASE", ":memory:"),
        "OPTIONS": {"timeout": 20},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = True
CELERY_BATCH_MAX_SIZE = 8
CELERY_BATCH_MAX_WAIT = 1.0
CELERY_BATCH_LINGER = 0.3
