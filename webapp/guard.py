"""
Who may come in, how often, and what every answer says: around all routes of all doors.

Rule 1: Whatever happens inside, what goes out is an answer of the contract's form.
Rule 2: Who was let in is let out exactly once: with the answer, or at its stream's end.
Rule 3: Nothing here waits for anybody, but for a store of rates where one is set.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus

from webapp import request_id
from webapp.addresses import Addresses
from webapp.armour import Armour
from webapp.cors import Hosts, Origins
from webapp.errors import Refused, TooManyRequests, Unauthorized, refusal
from webapp.keys import Keyring
from webapp.messages import Answer, Ask
from webapp.passes import Held, Pass
from webapp.rates import Rates
from webapp.settings import Settings
from webapp.turnstile import Turnstile
from webapp.ways import Way

__all__ = ["Guard"]

log = logging.getLogger(__name__)

#: What load balancers ask, without a key, a rate or a count.
_PROBES = frozenset({"/healthz", "/readyz"})

#: What has no secrets: the page, and what describes the rest.
_PUBLIC = frozenset({"/", "/docs", "/openapi.json"})
_PUBLIC_FILES = "/page/"

#: What a log says of an answer that nobody waited for.
_GONE = 499


class Guard:
    """
    Stands before all routes.

    Args:
        settings: What is allowed.
        methods: Returns what the route at a path takes; nothing where there is none.

    Raises:
        ConfigurationError: A setting cannot be understood.
    """

    def __init__(self, settings: Settings, methods: Callable[[str], Collection[str]]) -> None:
        self.turnstile = Turnstile(settings.max_concurrent)
        self._methods = methods
        self._addresses = Addresses(settings.trusted_proxies)
        self._armour = Armour(settings.hsts)
        self._keys = Keyring.read(settings.api_keys, settings.api_keys_file)
        self._open = _PUBLIC | set(settings.open_paths.replace(",", " ").split())
        self._hosts = Hosts(settings.allowed_hosts)
        self._origins = Origins(settings.cors_origins)
        self._rates = Rates(settings.rate, settings.rate_store)

    async def answer(self, ask: Ask, way: Way, route: Callable[[], Awaitable[Answer]]) -> Answer:
        """
        Let a request in, or refuse it, and complete its answer.

        Args:
            ask: The request.
            way: How its server waits.
            route: Answers it, once it is let in.
        """
        address = self._addresses.name(ask.client, ask.headers.get("x-forwarded-for", ""))
        entered = Pass(ask, address)
        try:
            return self._completed(entered, await self._answer(entered, way, route))
        except BaseException:
            entered.end(_GONE)
            raise
        finally:
            entered.forget()

    def root(self, ask: Ask) -> str:
        """
        Return the path below which a client finds the app.

        Args:
            ask: Its request.
        """
        prefix = ask.headers.get("x-forwarded-prefix", "")
        return self._addresses.root(ask.client, ask.root, prefix)

    def failed(self, ask: Ask) -> Answer:
        """
        Return what a client is told when a framework has failed before it came here.

        Args:
            ask: The request; its body is of no interest.
        """
        entered = Pass(ask, self._addresses.name(ask.client))
        try:
            return self._completed(entered, _broken(entered))
        finally:
            entered.forget()

    async def _answer(
        self, entered: Pass, way: Way, route: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        ask = entered.ask
        try:
            if ask.method == "OPTIONS":
                preflight = self._origins.preflight(ask, self._methods(ask.path))
                if preflight is not None:
                    return preflight
            await self._admit(entered, way)
            return await route()
        except Refused as refused:
            return refused.answer()
        except Exception:
            log.exception("answering %s %r", ask.method, ask.path)
            return _broken(entered)

    async def _admit(self, entered: Pass, way: Way) -> None:
        ask = entered.ask
        if ask.path in _PROBES:
            return
        self._hosts.check(ask)
        self._origins.check(ask)
        unknown = self._identify(entered)
        if self._rates:
            count, client = self._rates.count, entered.client
            allowance = count(client) if self._rates.is_quick else await way.call(count, client)
            entered.allowance = allowance
            if allowance.is_over:
                again = {"Retry-After": str(allowance.reset)}
                raise TooManyRequests(
                    f"{allowance.limit} requests in {allowance.stretch} s are the limit", again
                )
        # Only now, so that guessing keys has the rate of its address.
        if unknown is not None:
            raise unknown
        self.turnstile.enter(entered.client)
        entered.holds(self.turnstile.leave)

    def _identify(self, entered: Pass) -> Unauthorized | None:
        """Note whose key a request brings; return why it may not come in."""
        if not self._keys:
            return None
        try:
            entered.client = f"key:{self._keys.holder(entered.ask.headers)}"
        except Unauthorized as unknown:
            path = entered.ask.path
            return None if path in self._open or path.startswith(_PUBLIC_FILES) else unknown
        return None

    def _completed(self, entered: Pass, answer: Answer) -> Answer:
        """Return an answer with what all answers say; at its end the request ends."""
        about_sites = self._origins.headers(entered.ask)
        headers = {
            **self._armour.headers(entered.ask.path),
            **about_sites,
            **(entered.allowance.headers() if entered.allowance else {}),
            **answer.headers,
            request_id.HEADER: entered.name,
        }
        if about_sites and "Vary" in answer.headers:
            headers["Vary"] = f"{answer.headers['Vary']}, Origin"
        if hasattr(answer.body, "__aiter__"):
            held = Held(answer.body, entered, answer.status)
            return Answer(status=answer.status, body=held, headers=headers)
        entered.end(answer.status)
        return Answer(status=answer.status, body=answer.body, headers=headers)


def _broken(entered: Pass) -> Answer:
    message = f"something went wrong here; the server's log has it under {entered.name}"
    return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError", message)
