"""FastAPI apps of users: their views call a batch task, and what goes wrong is answered."""

from http.client import HTTPConnection
from typing import Annotated, Any

import pytest
from celery import Celery
from fastapi import Body, Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import PlainTextResponse, Response
from fastapi.testclient import TestClient

from celery_batch import BatchTask
from celery_batch.web.fastapi import (
    Predictor,
    add_exception_handlers,
    predictor,
    readiness_router,
)
from celery_batch.web.predict import predict
from tests.services.servers.ports import quiet_port
from tests.services.servers.served_asgi import served_asgi
from tests.services.setup import Setup
from tests.services.shared_setup import eventually


@pytest.fixture
def celery():
    """A Celery app whose tasks run in the caller's process."""
    with Celery("eager", broker="memory://", set_as_current=False) as app:
        app.conf.task_always_eager = True
        app.task(base=BatchTask, name="upper")(_upper)
        yield app


def _upper(text: list[str]) -> list[Any]:
    return [ValueError("no letters") if each.isdecimal() else each.upper() for each in text]


async def _key_error(_request: Request, _error: Exception) -> Response:
    return PlainTextResponse("own", 404)


@pytest.fixture
def client(celery: Celery):
    """A client of an app that has a middleware and an exception handler of its own, too."""
    app = FastAPI()
    app.add_middleware(CORSMiddleware, allow_origins=["https://a.example"])
    app.add_exception_handler(KeyError, _key_error)
    add_exception_handlers(app)
    depends = Depends(predictor(celery.tasks["upper"], timeout=3))

    @app.post("/predict")
    async def _predict(text: list[str], predict: Annotated[Predictor, depends]) -> list[str]:
        return await predict(text)

    @app.get("/timeout")
    async def _timeout(predict: Annotated[Predictor, depends]) -> float:
        return predict.timeout

    @app.get("/errors/{name}")
    async def _error(name: str) -> None:
        raise {"value": ValueError, "runtime": RuntimeError, "key": KeyError}[name]

    return TestClient(app, raise_server_exceptions=False)


def test_a_dependency_calls_the_task(client: TestClient):
    """A view awaits it with the items, and has their outputs in order."""
    assert ["A", "B"] == client.post("/predict", json=["a", "b"]).json()


@pytest.mark.parametrize(
    ("header", "seconds"), [({}, 3), ({"X-Timeout": "0.5"}, 0.5), ({"X-Timeout": "60"}, 3)]
)
def test_a_client_may_wait_for_less(client: TestClient, header: dict[str, str], seconds: float):
    """X-Timeout shortens the time that the app gives, and never extends it."""
    assert seconds == client.get("/timeout", headers=header).json()


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", ""])
def test_a_time_is_a_number_above_0(client: TestClient, value: str):
    """Anything else is refused as FastAPI refuses a wrong parameter."""
    assert 422 == client.get("/timeout", headers={"X-Timeout": value}).status_code


def test_the_tasks_errors_are_answered(client: TestClient):
    """With `http_error`'s status and body, and what a middleware adds to all answers."""
    response = client.post("/predict", json=["a", "1"], headers={"Origin": "https://a.example"})

    assert 422 == response.status_code
    assert {"type": "ValueError", "message": "no letters", "index": 1} == response.json()["error"]
    assert "https://a.example" == response.headers["Access-Control-Allow-Origin"]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("value", (500, "Internal Server Error")),
        ("runtime", (500, "Internal Server Error")),
        ("key", (404, "own")),
    ],
)
def test_the_views_errors_are_its_own(client: TestClient, name: str, answer: tuple[int, str]):
    """A ValueError of the view is a mistake of the program; own handlers are called."""
    response = client.get(f"/errors/{name}")

    assert answer == (response.status_code, response.text)


def test_handlers_of_the_apps_own_stay():
    """Whatever has a handler already keeps it."""
    app = FastAPI()
    app.add_exception_handler(ValueError, _key_error)
    add_exception_handlers(app)

    assert _key_error is app.exception_handlers[ValueError]


def test_probes_are_told(celery: Celery):
    """200 while the tasks are served, else 503 with the reason."""
    broker = f"redis://127.0.0.1:{quiet_port()}/0"
    with Celery("adrift", broker=broker, set_as_current=False) as adrift:
        app = FastAPI()
        app.include_router(readiness_router(celery, [celery.tasks["upper"]]))
        task = adrift.task(base=BatchTask, name="upper")(_upper)
        app.include_router(readiness_router(adrift, [task], path="/adrift"))
        client = TestClient(app)
        ready, away = client.get("/readyz"), client.get("/adrift")

    assert (200, {"ready": True, "reasons": {}}) == (ready.status_code, ready.json())
    assert (503, ["broker"]) == (away.status_code, [*away.json()["reasons"]])


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "http-middleware"])
def test_a_client_that_goes_has_its_call_revoked(setup: Setup, wrapped: bool):  # noqa: FBT001
    """What waits in the queue never runs, whether or not a middleware stands between."""
    app = FastAPI()
    add_exception_handlers(app)
    depends = Depends(predictor(setup.double, timeout=60))

    @app.post("/")
    async def _predict(
        item: Annotated[int, Body()], predict: Annotated[Predictor, depends]
    ) -> list[int]:
        return await predict([item])

    if wrapped:

        @app.middleware("http")
        async def _pass(request: Request, call_next: Any) -> Any:
            return await call_next(request)

    worker = setup.worker("-c", "1")
    worker.ask("batch_drain")
    inspect = setup.app.control.inspect([worker.name], timeout=20.0, limit=1)
    with served_asgi(app) as address:
        leaving = HTTPConnection(address)
        leaving.request("POST", "/", "1", {"Content-Type": "application/json"})
        with setup.app.connection_for_read() as connection:
            eventually(lambda: connection.default_channel._size("celery"), "a call")
        leaving.close()
        eventually(lambda: (inspect.revoked() or {}).get(worker.name), "a revoke")
    worker.ask("batch_resume")

    assert [42] == predict(setup.double, [21], timeout=60)
    assert [[21]] == [each["items"] for each in setup.recall("double")]
