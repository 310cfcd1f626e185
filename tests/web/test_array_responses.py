"""Arrays in requests and responses of users' apps, with real servers and a real worker."""

import io
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Annotated, Any

import httpx
import numpy as np
import pytest
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path
from fastapi import Depends, FastAPI, Request, Response
from flask import Flask, request
from werkzeug.serving import make_server

from celery_batch import NotAcceptable, apredict, encode_outputs, predict, read_npy
from celery_batch.errors import InvalidRow
from celery_batch.processes.redis_server import RedisServer
from celery_batch.web import django as for_django
from celery_batch.web import fastapi as for_fastapi
from celery_batch.web import flask as for_flask
from tests.services.servers.served_asgi import served_asgi
from tests.services.setup import Setup, emptied, open_setup

if not settings.configured:
    settings.configure()

NPY = "application/x-npy"


@pytest.fixture(scope="module")
def served(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """The tests' app with a worker, for all tests of this module."""
    with open_setup(emptied(redis_server), tmp_path_factory.mktemp("shop")) as setup:
        setup.worker("-c", "1")
        yield setup


@contextmanager
def served_wsgi(app: Any) -> Iterator[str]:
    """Serve a WSGI app in threads."""
    with make_server("127.0.0.1", 0, app, threaded=True) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.port}"
        finally:
            server.shutdown()
            thread.join()


def flask_app(setup: Setup) -> Flask:
    """Return an app whose views are as short as in the docs."""
    app = Flask(__name__)
    for_flask.register_error_handlers(app)

    @app.post("/json")
    def _json() -> Any:
        return {"outputs": predict(setup.halved, read_npy(request.get_data()), timeout=60)}

    @app.post("/either")
    def _either() -> Any:
        outputs = predict(setup.halved, read_npy(request.get_data()), timeout=60)
        return for_flask.array_response(outputs)

    return app


def fastapi_app(setup: Setup) -> FastAPI:
    """Return an app whose response is checked by its annotation."""
    app = FastAPI()
    for_fastapi.add_exception_handlers(app)
    as_lists = Depends(for_fastapi.predictor(setup.halved, timeout=60))
    as_arrays = Depends(for_fastapi.predictor(setup.halved, timeout=60, arrays=True))
    of_request = for_fastapi.Predictor

    @app.post("/json")
    async def _json(
        request: Request, predict: Annotated[of_request, as_lists]
    ) -> dict[str, list[list[float | None]]]:
        return {"outputs": await predict(read_npy(await request.body()))}

    @app.post("/either")
    async def _either(request: Request, predict: Annotated[of_request, as_arrays]) -> Response:
        outputs = await predict(read_npy(await request.body()))
        return for_fastapi.array_response(request, outputs)

    return app


def django_urls(setup: Setup, *, is_async: bool) -> Any:
    """Return a site's routes."""

    def view(request: HttpRequest) -> HttpResponse:
        outputs = predict(setup.halved, read_npy(request.body), timeout=60)
        is_json = request.path == "/json"
        return for_django.array_response(request, {"outputs": outputs} if is_json else outputs)

    async def aview(request: HttpRequest) -> HttpResponse:
        outputs = await apredict(setup.halved, read_npy(request.body), timeout=60)
        is_json = request.path == "/json"
        return for_django.array_response(request, {"outputs": outputs} if is_json else outputs)

    urls = ModuleType("urls")
    either = aview if is_async else view
    urls.urlpatterns = [path("json", either), path("either", either)]
    return urls


@pytest.fixture(scope="module", params=["flask", "fastapi", "django-wsgi", "django-asgi"])
def post(request: pytest.FixtureRequest, served: Setup) -> Iterator[Callable[..., httpx.Response]]:
    """POST of an array to a path of an app of each framework, on a server."""
    is_async = request.param == "django-asgi"
    urls = django_urls(served, is_async=is_async)
    middleware = ["celery_batch.web.django.BatchErrorMiddleware"]
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=middleware, ALLOWED_HOSTS=["*"]):
        if request.param == "flask":
            serving = served_wsgi(flask_app(served))
        elif request.param == "fastapi":
            serving = served_asgi(fastapi_app(served))
        else:
            serving = served_asgi(ASGIHandler()) if is_async else served_wsgi(WSGIHandler())
        with serving as address, httpx.Client(base_url=f"http://{address}", timeout=60) as client:

            def post(path: str, body: Any, **headers: str) -> httpx.Response:
                content = body if isinstance(body, bytes) else saved(body)
                return client.post(path, content=content, headers=headers)

            yield post


def saved(array: Any) -> bytes:
    """Return a .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


ARRAY = np.array([[1, 2, 3], [4, math.nan, math.inf]], "f4")
LISTS = [[0.5, 1, 1.5], [2, None, None]]


def test_arrays_are_json(post: Callable[..., httpx.Response]):
    """Also within a dict, with null for NaN and infinities, which JSON has not."""
    response = post("/json", ARRAY)

    assert (200, "application/json") == (response.status_code, response.headers["content-type"])
    assert {"outputs": LISTS} == json.loads(response.text, parse_constant=pytest.fail)


@pytest.mark.parametrize("accept", ["application/json", "*/*", "text/html, */*;q=0.8"])
def test_a_client_has_json_unless_it_asks_for_more(
    post: Callable[..., httpx.Response], accept: str
):
    """Lists are the default."""
    response = post("/either", ARRAY, Accept=accept)

    assert LISTS == response.json()
    assert "Accept" in response.headers["vary"]


@pytest.mark.parametrize("accept", [NPY, "application/octet-stream", f"*/*;q=0.5, {NPY}"])
def test_a_client_may_have_the_bytes(post: Callable[..., httpx.Response], accept: str):
    """As one .npy whose rows are the outputs, with their dtype and what JSON has not."""
    response = post("/either", ARRAY, Accept=accept)
    found = np.load(io.BytesIO(response.content), allow_pickle=False)

    assert 200 == response.status_code
    assert response.headers["content-type"] in accept
    assert np.float32 == found.dtype
    assert np.array_equal(ARRAY / 2, found, equal_nan=True)


def test_arrays_of_several_shapes_are_no_npy(post: Callable[..., httpx.Response]):
    """They are 406, with what differs, unless the client takes JSON, too."""
    refused = post("/either", np.array([2, 3]), Accept=NPY)
    taken = post("/either", np.array([2, 3]), Accept=f"{NPY}, application/json;q=0.1")

    assert (406, "NotAcceptable") == (refused.status_code, refused.json()["error"]["type"])
    assert "output 1 is an array of <f4 [3], and output 0 of <f4 [2]" in refused.text
    assert [[0, 0], [0, 0, 0]] == taken.json()


def test_a_body_that_is_no_array_is_refused(post: Callable[..., httpx.Response]):
    """With 400; objects are not unpickled."""
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    for body in (b"[1, 2]", saved(ARRAY)[:-1], file.getvalue(), saved(np.array(3.0))):
        response = post("/either", body, Accept=NPY)
        assert (400, "InvalidRow") == (response.status_code, response.json()["error"]["type"])


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, "application/json"),
        ("", "application/json"),
        ("application/json, application/x-npy", "application/json"),
        ("application/x-npy, application/json", NPY),
        ("application/x-npy;q=0.5, application/json", "application/json"),
        ("Application/X-NPY; q=0.9, */*;q=0.8", NPY),
        ("application/x-npy;q=0.1, */*", "application/json"),
        ("application/octet-stream, application/x-npy;q=0.9", "application/octet-stream"),
        ("application/x-npy;q=0", "application/json"),
        ("application/x-npy;q=often", "application/json"),
        (",;,q=1;;", "application/json"),
    ],
)
def test_accept_says_what_is_preferred(accept: str | None, content_type: str):
    """By its qualities, then by what is named, then by its order."""
    assert content_type == encode_outputs([np.ones(1)], accept)[1]


def test_whatever_is_json_is_json():
    """NaN outside of arrays, half characters, numbers of NumPy, tuples."""
    value = {"a": (math.nan, [math.inf, np.float32(1.5)]), "b": "\ud800é", "c": np.float64("nan")}
    body, _ = encode_outputs(value)

    assert {"a": [None, [None, 1.5]], "b": "\ud800é", "c": None} == json.loads(body)


def test_answers_need_no_numpy(in_python: Callable[..., str]):
    """A web process without it answers with what it could not decode, in either form."""
    found = in_python(
        "import sys; sys.modules['numpy'] = None\n"
        "import kombu.serialization\n"
        "from kombu.utils.json import loads\n"
        "from celery_batch import as_lists, encode_outputs\n"
        "zeros = {'__type__': 'ndarray', '__value__': ['<f4', [3], 'AAAAAAAAAAAAAMB/']}\n"
        "import json; outputs = [loads(json.dumps(zeros))] * 2\n"
        "print(encode_outputs({'a': outputs})[0].decode())\n"
        f"print(encode_outputs(outputs, {NPY!r})[0].hex())\n"
    )
    text, npy = found.splitlines()

    assert {"a": [[0, 0, None]] * 2} == json.loads(text)
    array = np.load(io.BytesIO(bytes.fromhex(npy)))
    assert (np.float32, "[[0.0, 0.0, nan], [0.0, 0.0, nan]]") == (array.dtype, repr(array.tolist()))


def test_what_is_neither_is_an_error():
    """The view's own, unless .npy alone was asked for."""
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        encode_outputs([{1}])
    with pytest.raises(NotAcceptable):
        encode_outputs({"a": np.ones(1)}, NPY)
    with pytest.raises(InvalidRow):
        read_npy(b"")


def test_flasks_own_json_stays(tmp_path: Path):
    """What the app's provider encodes is its own, and what neither does is Flask's error."""
    app = Flask(__name__)
    app.json.default = lambda value: f"own {type(value).__name__}"  # type: ignore[method-assign,attr-defined]
    for_flask.register_error_handlers(app)
    other = Flask(__name__)
    for_flask.register_error_handlers(other)

    with app.app_context():
        assert '"own PosixPath"' == app.json.dumps(tmp_path)
    with other.app_context(), pytest.raises(TypeError, match="PosixPath is not JSON serializable"):
        other.json.dumps([tmp_path])
