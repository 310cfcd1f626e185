"""What ASGI apps share: a contract as an ASGI app of its own, to be mounted in a framework's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from webapp.bodies import DRAINS, MOST_DRAINED
from webapp.contract import Contract
from webapp.errors import HeadersTooLarge
from webapp.messages import Answer, Ask
from webapp.routes import Routes

__all__ = ["App", "ContractApp", "Receive", "Scope", "Send", "ask_of", "bounded", "path_of"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
#: Frameworks disagree on the types of what an ASGI app is given.
App = Any

#: Seconds after which it is worth a task to notice that a client hangs up.
_WATCH_AFTER = 0.1

#: As many as gunicorn takes.
_MOST_HEADERS = 100


class ContractApp:
    """
    Answers ASGI's requests.

    Args:
        contract: What is answered.
    """

    def __init__(self, contract: Contract) -> None:
        self._contract = contract

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, unless its client hangs up."""
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        limit = self._contract.routes.limit(scope["method"], path_of(scope))
        body = await _body(receive, limit)
        if body is None:
            return
        with _Watch(receive):
            answer = await self._contract.aanswer(ask_of(scope, body))
            await _tell(answer, send)


def ask_of(scope: Mapping[str, Any], body: bytes) -> Ask:
    """
    Return a request as the contract takes it.

    Args:
        scope: ASGI's.
        body: As it came.
    """
    client = scope.get("client")
    too_many = len(scope["headers"]) > _MOST_HEADERS
    return Ask(
        method=scope["method"],
        path=path_of(scope),
        query=scope.get("query_string", b"").decode("latin-1"),
        headers={} if too_many else _headers(scope["headers"]),
        body=body,
        client=client[0] if client else "",
        root=scope.get("root_path", ""),
        flaw=HeadersTooLarge(f"more than {_MOST_HEADERS} headers") if too_many else None,
    )


def path_of(scope: Mapping[str, Any]) -> str:
    """
    Return the path of a request below that of the app, where it has a place of its own.

    Args:
        scope: ASGI's.
    """
    path: str = scope["path"]
    root = scope.get("root_path", "").rstrip("/")
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def _headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by their names; one that came twice has both values, as in WSGI."""
    headers: dict[str, str] = {}
    for raw, value in pairs:
        name, text = raw.decode("latin-1"), value.decode("latin-1")
        headers[name] = f"{headers[name]},{text}" if name in headers else text
    return headers


def bounded(app: App, routes: Routes) -> App:
    """
    Return an app that reads bodies no further than one byte beyond their limit.

    It sees a body over the limit as if it ended there, so it refuses it.

    Args:
        app: An ASGI app.
        routes: They know the limits.
    """

    async def bounded_app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            receive = _Bounded(receive, routes.limit(scope["method"], path_of(scope))).receive
        await app(scope, receive, send)

    return bounded_app


class _Bounded:
    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._left = limit + 1

    async def receive(self) -> MutableMapping[str, Any]:
        if self._left <= 0:
            await asyncio.Future()  # until the answer is given, which then comes at once
        message = await self._receive()
        if message["type"] == "http.request":
            body = message.get("body", b"")[: self._left]
            self._left -= len(body)
            if self._left <= 0:
                if message.get("more_body"):
                    await _drain(self._receive)
                return {"type": "http.request", "body": body, "more_body": False}
        return message


async def _body(receive: Receive, limit: int) -> bytes | None:
    """Read a body, no further than one byte beyond the limit; None if the client hangs up."""
    body: bytes | bytearray = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        chunk: bytes = message.get("body", b"")
        if body:
            # What grows by so much each time would be copied from its beginning otherwise.
            body = body if isinstance(body, bytearray) else bytearray(body)
            body += chunk
        else:
            body = chunk
        if len(body) > limit and message.get("more_body"):
            await _drain(receive)
        if len(body) > limit or not message.get("more_body"):
            return bytes(body) if len(body) <= limit else bytes(body[: limit + 1])


async def _drain(receive: Receive) -> None:
    """Read away some of a body that is refused."""
    left = MOST_DRAINED
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAINS):
            while left > 0:
                message = await receive()
                if not message.get("more_body"):
                    return
                left -= len(message.get("body", b""))


class _Watch:
    """
    Cancels the task of a request whose client hangs up before it has its answer.

    Most answers come too soon for that to be worth anything; then it costs a timer.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watcher: asyncio.Task[None] | None = None
        self._task = asyncio.current_task()
        self._has_gone = False

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_WATCH_AFTER, self._begin)

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> bool:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        # A hang-up ends here: nobody is there to be told anything.
        if not (self._has_gone and kind is asyncio.CancelledError):
            return False
        if self._task is not None:
            self._task.uncancel()
        return True

    def _begin(self) -> None:
        self._watcher = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._has_gone = True
        if self._task is not None:
            self._task.cancel()


@lru_cache(maxsize=512)
def _encoded(name: str, value: str) -> tuple[bytes, bytes]:
    """Return a header as ASGI has it; most are the same in all answers."""
    return name.lower().encode("latin-1"), value.encode("latin-1")


async def _tell(answer: Answer, send: Send) -> None:
    headers = [_encoded(name, value) for name, value in answer.headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    if isinstance(answer.body, bytes):
        await send({"type": "http.response.body", "body": answer.body})
        return
    chunks = aiter(answer.body)
    try:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk.encode(), "more_body": True})
    finally:
        if hasattr(chunks, "aclose"):
            await chunks.aclose()
    await send({"type": "http.response.body"})
