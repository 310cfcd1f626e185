"""The same settings with the asynchronous view, for ASGI servers."""

from __future__ import annotations

from webapp.django_app.settings import *  # noqa: F403 (as Django's settings are varied)

ROOT_URLCONF = "webapp.django_app.async_urls"
