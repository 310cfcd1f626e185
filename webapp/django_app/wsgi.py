"""The Django door for WSGI servers: ``gunicorn webapp.django_app.wsgi``."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

from webapp.service import service_contract

__all__ = ["application"]

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.django_app.settings")

application = get_wsgi_application()

# Now rather than with the first request: a wrong setting is found at once, and this is the
# main thread, where the contract can hear that the server is to stop.
service_contract()
