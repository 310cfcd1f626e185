"""
Django's settings for the web tier: no database, no sessions, no templates.

The limits of the service are `webapp.settings`, the same for every door.
"""

from __future__ import annotations

import os
import secrets

DEBUG = False
ALLOWED_HOSTS = os.environ.get("WEBAPP_ALLOWED_HOSTS", "*").split(",")
#: Nothing is signed with it; each process may have its own.
SECRET_KEY = os.environ.get("WEBAPP_DJANGO_SECRET_KEY") or secrets.token_urlsafe(50)
ROOT_URLCONF = "webapp.django_app.urls"
WSGI_APPLICATION = "webapp.django_app.wsgi.application"
ASGI_APPLICATION = "webapp.django_app.asgi.application"
INSTALLED_APPS: list[str] = []
MIDDLEWARE: list[str] = []
#: The system's: else the times in the log are those of Chicago.
TIME_ZONE = None
USE_TZ = True
APPEND_SLASH = False
SILENCED_SYSTEM_CHECKS = [
    # The contract gives every answer its headers, whatever the framework, and TLS ends
    # before this server: Django's own middleware would do it again, in one door only.
    "security.W001",
    "security.W002",
    "security.W003",  # no cookies, so nothing that another site could use
    "security.W020",  # WEBAPP_ALLOWED_HOSTS: nothing here is made of the host's name
]
