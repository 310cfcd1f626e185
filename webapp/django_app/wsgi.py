"""The Django door: ``gunicorn -k webapp.parking.ParkingWorker webapp.django_app.wsgi``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from django.core.wsgi import get_wsgi_application

from webapp.django_app.door import Later
from webapp.parked import parks
from webapp.service import served_contract

__all__ = ["application"]

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.django_app.settings")

_django: Any = get_wsgi_application()


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Any:
    """
    Answer a request.

    Args:
        environ: WSGI's.
        start_response: Called with status and headers, unless the answer is parked.
    """
    if not parks(environ):
        return _django(environ, start_response)
    said: list[tuple[Any, ...]] = []
    response = _django(environ, lambda *head: said.append(head))
    if isinstance(response, Later):
        _status, headers = said[0]
        return response.told(headers)
    for head in said:
        start_response(*head)
    return response


# Now rather than with the first request: a wrong setting is found at once, and this is the
# main thread, where the contract can hear that the server is to stop.
served_contract()
