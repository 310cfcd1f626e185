"""The Django door for ASGI servers: ``uvicorn webapp.django_app.asgi:application``."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

from webapp.asgi import bounded
from webapp.service import served_contract

__all__ = ["application"]

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.django_app.asgi_settings")

#: Django would read bodies of any length before it asks for a view.
application = bounded(get_asgi_application(), served_contract().routes)
