"""How many requests one client may have in hand at once."""

from __future__ import annotations

import threading

from webapp.errors import TooManyAtOnce

__all__ = ["Turnstile"]


class Turnstile:
    """
    Counts who is inside.

    Args:
        most: Requests of one client at a time; 0 for any number.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._inside: dict[str, int] = {}

    @property
    def inside(self) -> int:
        """Requests in hand."""
        return sum(self._inside.values())

    def enter(self, client: str) -> None:
        """
        Let a request in; `leave` has to follow, however it ends.

        Raises:
            TooManyAtOnce: Its client has as many in hand as it may.
        """
        with self._lock:
            count = self._inside.get(client, 0)
            if self._most and count >= self._most:
                raise TooManyAtOnce(
                    f"{count} requests of this client are in hand, the limit is {self._most}"
                )
            self._inside[client] = count + 1

    def leave(self, client: str) -> None:
        """Note that a request is answered."""
        with self._lock:
            if (count := self._inside[client] - 1) > 0:
                self._inside[client] = count
            else:
                del self._inside[client]
