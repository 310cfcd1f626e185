"""What a client hears when a door itself breaks, before or after the contract."""

from __future__ import annotations

import json

import pytest

BREAK = """
import asyncio, json, os, sys
from webapp import asgi, service, wsgi
from webapp.contract import Contract

def breaks(*_args, **_more):
    raise RuntimeError("/srv/private is broken")

Contract.answer = Contract.aanswer = breaks
"""

FLASK = """
from webapp.flask_app import app
reply = app.test_client().post("/predict", headers={"X-Request-ID": "r-1"})
print(json.dumps([reply.status_code, dict(reply.headers), reply.get_json()]))
"""

FASTAPI = """
import httpx
from webapp.asgi_app import app
async def ask():
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.post("/predict", headers={"X-Request-ID": "r-1"})
reply = asyncio.run(ask())
print(json.dumps([reply.status_code, dict(reply.headers), reply.json()]))
"""

DJANGO = """
os.environ["DJANGO_SETTINGS_MODULE"] = "webapp.django_app.{settings}"
import django
django.setup()
from django.test import Client
client = Client(raise_request_exception=False)
reply = client.post("/predict", headers={{"X-Request-ID": "r-1"}})
print(json.dumps([reply.status_code, dict(reply.headers), json.loads(reply.content)]))
"""

PARKED = """
from webapp.parked import OFFER
environ = {OFFER: True, "REQUEST_METHOD": "POST", "PATH_INFO": "/predict"}
environ["HTTP_X_REQUEST_ID"] = "r-1"
parked = wsgi.answer_to(environ, service.service_contract())
answer = asyncio.run(parked.answering())
print(json.dumps([answer.status, dict(answer.headers), json.loads(answer.body)]))
"""

DOORS = {
    "flask": FLASK,
    "fastapi": FASTAPI,
    "parked": PARKED,
    "django": DJANGO.format(settings="settings"),
    "django-asgi": DJANGO.format(settings="asgi_settings"),
}


@pytest.mark.parametrize("code", DOORS.values(), ids=DOORS.keys())
def test_a_broken_door_says_so_in_the_words_of_the_contract(in_python, code):
    """The client hears 500 and under which name it is in the log, and nothing of why."""
    url = "redis://127.0.0.1:1"  # never connected to
    out = in_python(BREAK + code, CELERY_BROKER_URL=url, CELERY_RESULT_BACKEND=url)
    status, raw, body = json.loads(out.splitlines()[-1])
    headers = {name.lower(): value for name, value in raw.items()}

    assert (500, "InternalError") == (status, body["error"]["type"])
    assert "r-1" in body["error"]["message"]
    assert "private" not in out
    assert "r-1" == headers["x-request-id"]
    assert "nosniff" == headers["x-content-type-options"]
