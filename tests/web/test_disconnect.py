"""A client that disconnects while it waits: its work is cancelled."""

from __future__ import annotations

import asyncio
from http.client import HTTPConnection
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from celery_batch.web.disconnect import ClientDisconnected, until_disconnect
from celery_batch.web.errors import http_error
from celery_batch.web.predict import apredict
from tests.services.servers.served_asgi import served_asgi
from tests.services.setup import Setup
from tests.services.shared_setup import eventually


class Client:
    """What a server tells an application of its client."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.is_asked = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        """Return the next message when there is one."""
        self.is_asked.set()
        return await self.messages.get()


async def never() -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


async def _after(event: asyncio.Event) -> str:
    await event.wait()
    return "answer"


def test_the_answer_is_returned():
    """While the client stays, nothing else is seen, and nothing is left behind."""

    async def main() -> str:
        """Ask, and look for tasks that are left."""
        client = Client()
        answer = await until_disconnect(client.receive, _after(client.is_asked))
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return answer

    assert "answer" == asyncio.run(main())


def test_a_quick_answer_watches_for_nothing():
    """The server is not asked about a client that has its answer soon."""

    async def main() -> bool:
        """Ask, and look whether the server was asked."""
        client = Client()
        await until_disconnect(client.receive, asyncio.sleep(0.01))
        await asyncio.sleep(0)
        return client.is_asked.is_set()

    assert asyncio.run(main()) is False


@pytest.mark.parametrize("error", [ValueError("a"), TimeoutError("b")], ids=["any", "timeout"])
def test_an_error_is_raised(error: Exception):
    """An error of the coroutine is its own, a time-out too."""

    async def fail() -> None:
        """Fail in a later step."""
        await asyncio.sleep(0)
        raise error

    async def main() -> None:
        """Ask."""
        await until_disconnect(Client().receive, fail())

    with pytest.raises(type(error)) as caught:
        asyncio.run(main())
    assert error is caught.value


def test_a_disconnect_cancels():
    """The coroutine is cancelled, the calling task is not; the rest of a body says nothing."""
    seen = []

    async def work() -> None:
        """Note the cancellation."""
        try:
            await never()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> int:
        """Ask for a client that goes."""
        client = Client()
        client.messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        client.messages.put_nowait({"type": "http.disconnect"})
        with pytest.raises(ClientDisconnected) as caught:
            await until_disconnect(client.receive, work())
        assert 499 == http_error(caught.value).status
        return asyncio.current_task().cancelling()

    assert 0 == asyncio.run(main())
    assert ["cancelled"] == seen


def test_a_cancelled_request_is_cancelled():
    """Who cancels the calling task, as a server that ends, sees it cancelled."""

    async def main() -> None:
        """Ask, and cancel."""
        client = Client()
        asking = asyncio.ensure_future(until_disconnect(client.receive, never()))
        await client.is_asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_client_that_goes_has_its_calls_revoked(setup: Setup):
    """Under a real server the calls that still wait are revoked, and others are answered."""
    worker = setup.worker("-c", "1")
    worker.ask("batch_pause", task="shop.double")
    waits, seen = [], []

    async def view(request: Request) -> Response:
        """Call the task for the client's item."""
        item = await request.json()
        waits.append(item)
        try:
            answer = apredict(setup.double, [item], timeout=60)
            return JSONResponse(await until_disconnect(request.receive, answer))
        except ClientDisconnected as error:
            seen.append(error)
            raise

    app = Starlette(
        routes=[Route("/", view, methods=["POST"])],
        exception_handlers={ClientDisconnected: lambda *_: Response(status_code=499)},
    )
    with served_asgi(app) as address:
        leaving = HTTPConnection(address)
        leaving.request("POST", "/", "1")
        eventually(lambda: waits == [1] and _waiting(worker) == 1, "a request that waits")
        leaving.close()
        eventually(lambda: seen, "a disconnect")
        eventually(lambda: worker.ask("revoked"), "a revoke")
        worker.ask("batch_resume", task="shop.double")
        staying = HTTPConnection(address, timeout=60)
        staying.request("POST", "/", "21")
        response = staying.getresponse()
        answer = response.status, response.read()
        staying.close()

    assert (200, b"[42]") == answer
    assert [[21]] == [each["items"] for each in setup.recall("double")]


def _waiting(worker: Any) -> int:
    """Return how many requests of the task wait in a worker."""
    return worker.status()["shop.double"]["waiting"]
