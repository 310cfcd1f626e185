"""The settings under ASGI."""

from webapp.django_site.settings import *  # noqa: F403 (all of them, but for these)

ROOT_URLCONF = "webapp.django_site.async_urls"
MIDDLEWARE = [
    "webapp.django_site.async_middleware.PrometheusBeforeMiddleware",
    "webapp.django_site.async_middleware.SecurityMiddleware",
    "webapp.django_site.async_middleware.WhiteNoiseMiddleware",
    "celery_batch.web.django.BatchErrorMiddleware",
    "webapp.django_site.async_middleware.PrometheusAfterMiddleware",
]
