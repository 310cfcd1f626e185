"""Which view answers which request: one table, read by every door and by the document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from webapp.errors import MethodNotAllowed, NotFound
from webapp.messages import Answer, Ask
from webapp.ways import Way

__all__ = ["Route", "Routes", "Visit"]


_NOTHING: Mapping[str, str] = MappingProxyType({})


class Visit(NamedTuple):
    """
    One request on its way through the contract.

    Args:
        ask: The request.
        way: How its server sends and waits.
        since: When it came, by the monotonic clock.
        parameters: What its path says where the route's has a name in braces.
        root: The path below which its client finds the app, to put before ours.
    """

    ask: Ask
    way: Way
    since: float
    parameters: Mapping[str, str] = _NOTHING
    root: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """
    One line of the table.

    Args:
        method: In capitals; what is said of GET holds for HEAD as well.
        path: With a name in braces for its last part where that may be anything:
            ``/tasks/{id}``.
        view: Answers; awaited, see `webapp.ways`.
        limit: Most bytes in the body.
        waits: Whether it waits for tasks, or for their news.
        operation: What the OpenAPI document says of it; None for nothing.
    """

    method: str
    path: str
    view: Callable[[Visit], Awaitable[Answer]]
    limit: int = 0
    waits: bool = False
    operation: Mapping[str, Any] | None = None


class Routes:
    """
    The table.

    Args:
        routes: Its lines.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = list(routes)
        self._by_path: dict[str, dict[str, Route]] = {}
        for route in self._routes:
            self._by_path.setdefault(route.path, {})[route.method] = route
            if route.method == "GET":
                self._by_path[route.path].setdefault("HEAD", route)
        #: For paths with a name in their last part: the name, under what comes before.
        self._names = {
            path[: path.index("{")]: path[path.index("{") + 1 : -1]
            for path in self._by_path
            if "{" in path
        }

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def paths(self) -> dict[str, list[str]]:
        """Return the methods of each path."""
        return {path: sorted(methods) for path, methods in self._by_path.items()}

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """
        Return the route of a request, and what its path says in the place of names.

        Args:
            method: In capitals.
            path: Without the query.

        Raises:
            NotFound: Nothing is there.
            MethodNotAllowed: Something is, but not for this method.
        """
        found, parameters = self._found(path)
        route = found.get(method)
        if route is None:
            raise MethodNotAllowed(f"{method[:20]} is not for this path", found)
        return route, parameters

    def _found(self, path: str) -> tuple[Mapping[str, Route], Mapping[str, str]]:
        found, parameters = self._by_path.get(path), {}
        if found is None:
            start, last = path[: path.rfind("/") + 1], path[path.rfind("/") + 1 :]
            name = self._names.get(start)
            if not (name and last):
                raise NotFound("there is nothing here")
            found, parameters = self._by_path[f"{start}{{{name}}}"], {name: last}
        return found, parameters

    def methods(self, path: str) -> Collection[str]:
        """
        Return the methods that a path takes; none where nothing is.

        Args:
            path: Without the query.
        """
        try:
            return self._found(path)[0]
        except NotFound:
            return ()

    def limit(self, method: str, path: str) -> int:
        """
        Return the most bytes that the body of a request may have.

        Args:
            method: In capitals.
            path: Without the query.
        """
        try:
            return self.find(method, path)[0].limit
        except (NotFound, MethodNotAllowed):
            return 0

    def waits(self, method: str, path: str) -> bool:
        """
        Say whether a request will wait for tasks, or for their news.

        Args:
            method: In capitals.
            path: Without the query.
        """
        try:
            return self.find(method, path)[0].waits
        except (NotFound, MethodNotAllowed):
            return False
