"""The routes that describe the service: the OpenAPI document, for programs and for people."""

from __future__ import annotations

import json
from collections.abc import Iterable

from webapp.manual import manual
from webapp.messages import Answer
from webapp.openapi import openapi
from webapp.routes import Route, Visit
from webapp.settings import Settings

__all__ = ["Documents"]


class Documents:
    """
    Both forms of the document, made once.

    Args:
        routes: What is described, beside these.
        settings: The limits.
    """

    def __init__(self, routes: Iterable[Route], settings: Settings) -> None:
        document = openapi([*routes, *self.routes()], settings)
        self._json = json.dumps(document).encode()
        self._page = manual(document)

    def routes(self) -> list[Route]:
        """Return these routes."""
        return [Route("GET", "/openapi.json", self.document), Route("GET", "/docs", self.page)]

    async def document(self, _visit: Visit) -> Answer:
        """Tell programs."""
        return Answer(body=self._json, headers={"Content-Type": "application/json"})

    async def page(self, _visit: Visit) -> Answer:
        """Tell people."""
        return Answer(body=self._page, headers={"Content-Type": "text/html; charset=utf-8"})
