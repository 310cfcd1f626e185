"""Settings of a site without a database: it calls batch tasks."""

from __future__ import annotations

import os

from django.core.management.utils import get_random_secret_key

from webapp import tasks

SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY") or get_random_secret_key()
ALLOWED_HOSTS = os.environ.get("DJANGO_ALLOWED_HOSTS", "*").split(",")
DEBUG = False
USE_TZ = True
INSTALLED_APPS = ["django_prometheus"]
MIDDLEWARE = [
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "celery_batch.web.django.BatchErrorMiddleware",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
]
ROOT_URLCONF = "webapp.django_site.urls"
WSGI_APPLICATION = "webapp.django_site.wsgi.application"
DATA_UPLOAD_MAX_MEMORY_SIZE = tasks.MAX_BODY
FILE_UPLOAD_MAX_MEMORY_SIZE = tasks.MAX_IMAGE
DATA_UPLOAD_MAX_NUMBER_FIELDS = DATA_UPLOAD_MAX_NUMBER_FILES = tasks.MAX_INPUTS
STATIC_URL = "/static/"
STATIC_ROOT = tasks.PAGE  # WhiteNoise serves the folder as it is
SECURE_CROSS_ORIGIN_OPENER_POLICY = None  # the page is served without TLS, too
SILENCED_SYSTEM_CHECKS = [
    "security.W002",  # the page's Content-Security-Policy says who may frame it
    "security.W003",  # there is no login, so no request can be forged
    "security.W004",  # TLS ends in front of the site
    "security.W008",  # likewise
]
LOGGING = {  # Django's own has no tracebacks unless DEBUG is set
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"]},
}
