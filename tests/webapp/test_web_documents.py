"""The OpenAPI document, for programs and for people, and what names a request in greenlets."""

from __future__ import annotations

import re
import shlex
import urllib.request

from webapp.curls import curl
from webapp.manual import manual
from webapp.messages import Answer
from webapp.openapi import openapi
from webapp.operations import operations
from webapp.routes import Route
from webapp.settings import Settings


async def view(_visit):
    """Answer nothing."""
    return Answer(body=None)


ALL = [Route(method, path, view) for method, path in operations(Settings())]


def test_every_route_is_described(door):
    """What a door answers, its document tells."""
    told = door.ask("GET", "/openapi.json").body["paths"]
    refused = {
        path: door.ask("PATCH", path.replace("{", "").replace("}", "")).headers["Allow"]
        for path in told
    }

    assert {operation[1] for operation in operations(Settings())} >= told.keys()
    assert {path: {*methods} for path, methods in told.items()} == {
        path: {method.lower() for method in allowed.split(", ")} - {"head"}
        for path, allowed in refused.items()
    }


def test_the_limits_are_told():
    """What an operator has set, the document says."""
    document = openapi(ALL, Settings(max_inputs=7, max_characters=9))
    body = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    inputs = body["schema"]["properties"]["inputs"]

    assert (7, 9) == (inputs["maxItems"], inputs["items"]["maxLength"])


def test_what_a_query_may_ask_is_told():
    """A form of pictures has no field for it, so the query says whether to explain."""
    parameters = openapi(ALL, Settings())["paths"]["/pictures"]["post"]["parameters"]

    assert ["explain"] == [each["name"] for each in parameters if each["in"] == "query"]


def test_keys_are_told_where_they_are_needed():
    """With keys, what needs one says so, and says 401; what is open does not."""
    paths = openapi(ALL, Settings(api_keys="ann=x"))["paths"]
    without = openapi(ALL, Settings())

    assert [{"bearer": []}, {"key": []}] == paths["/predict"]["post"]["security"]
    assert "401" in paths["/predict"]["post"]["responses"]
    assert [] == paths["/healthz"]["get"]["security"]
    assert "401" not in paths["/healthz"]["get"]["responses"]
    assert {} == without["components"]["securitySchemes"]


def test_the_manual_needs_nothing_from_elsewhere():
    """The page for people names every route, and has neither scripts nor styles of its own."""
    page = manual(openapi(ALL, Settings())).decode()

    assert [] == [route.path for route in ALL if f"{route.method} {route.path}" not in page]
    assert [] == [
        word for word in ("<script", "<style", " style=", "http:", "https:") if word in page
    ]


def test_the_manual_has_a_command_for_each_route(door):
    """What it says to type is a request that its server understands."""
    paths = openapi(ALL, Settings())["paths"]
    asked = curl("POST", "/predict", paths["/predict"]["post"])
    body = shlex.split(asked)[-1]
    keyed = openapi(ALL, Settings(api_keys="ann=x"))["paths"]["/tasks/{id}"]["delete"]

    assert asked.startswith("curl localhost:8000/predict -H 'Content-Type: ")
    assert 200 == door.ask("POST", "/predict", body, {"Content-Type": "application/json"}).status
    assert "curl localhost:8000/pictures -F picture=@photo.jpg" == curl(
        "POST", "/pictures", paths["/pictures"]["post"]
    )
    assert "--data-urlencode 's=" in curl("POST", "/stream", paths["/stream"]["post"])
    assert "curl -X DELETE localhost:8000/tasks/ID -H 'Authorization: Bearer KEY'" == curl(
        "DELETE", "/tasks/{id}", keyed
    )


def test_the_manual_has_the_look_of_the_page(door):
    """Its styles and its picture are files that the server has, beside the page's own."""
    page = manual(openapi(ALL, Settings())).decode()
    files = set(re.findall(r'(?:href|src)="(page/[^"]+)"', page))

    assert {"page/style.css", "page/manual.css", "page/icon.svg"} == files
    assert {200} == {status_of(door, f"/{name}") for name in files}


def status_of(door, path):
    """Return the status of an answer that is no JSON."""
    with urllib.request.urlopen(f"http://127.0.0.1:{door.port}{path}", timeout=30) as response:
        return response.status


def test_the_manual_quotes_what_it_shows():
    """Whatever a route is called, it is text."""
    odd = {"summary": "<script>alert(1)</script>", "responses": {"200": {"description": "&"}}}
    page = manual(openapi([Route("GET", "/<b>", view, operation=odd)], Settings())).decode()

    assert "<script" not in page
    assert "/&lt;b&gt;" in page


GREENLETS = """
from gevent import monkey
monkey.patch_all()
import gevent
from webapp import request_id

def serve(name):
    token = request_id.enter(name)
    gevent.sleep(0.01)
    seen = request_id.current()
    request_id.leave(token)
    return seen, request_id.current()

print([each.get() for each in [gevent.spawn(serve, f"r-{n}") for n in range(3)]])
"""


def test_greenlets_keep_their_requests_apart(in_python):
    """Requests that take turns in one thread keep their names."""
    assert str([(f"r-{number}", "-") for number in range(3)]) == in_python(GREENLETS)
