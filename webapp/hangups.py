"""
Notices that the client of a request has gone, where the server waits in a thread for it.

Asked of Linux' epoll is only whether the other side has closed: what a client sends
meanwhile, such as its next request, says nothing.  A client that closes its writing half
alone looks the same as one that has gone, until one writes to it; it counts as gone, as
it does for nginx, for Go's server and in asyncio.  Where there is no epoll nobody is
noticed, and tasks end by their ``expires``.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["Hangups", "hangups"]

log = logging.getLogger(__name__)


class Hangups:
    """One thread's, or greenlet's, eye on the connections of this process."""

    def __init__(self) -> None:
        self._epoll: Any = _new_epoll()
        self._watched: dict[int, Callable[[], object]] = {}
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, descriptor: int | None, on_hangup: Callable[[], object]) -> Iterator[None]:
        """
        Have a function called if the client of a connection goes meanwhile, or has gone.

        Args:
            descriptor: The connection's, open as long as it is watched; None for none.
            on_hangup: Called once at most, in a thread that others wait for, so briefly.
        """
        if descriptor is None or descriptor < 0 or self._epoll is None:
            yield
            return
        self._register(descriptor, on_hangup)
        try:
            yield
        finally:
            with self._guard:
                if self._watched.pop(descriptor, None) is not None:
                    with suppress(OSError, AttributeError):  # it, or we, are closed already
                        self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Watch nobody any more."""
        epoll, self._epoll = self._epoll, None
        if epoll is not None:
            epoll.close()

    def _register(self, descriptor: int, on_hangup: Callable[[], object]) -> None:
        # The first two are always told of; once, since nobody reads it away.
        events = select.EPOLLERR | select.EPOLLHUP | select.EPOLLRDHUP | select.EPOLLONESHOT
        with self._guard:
            self._watched[descriptor] = on_hangup
            try:
                self._epoll.register(descriptor, events)
            except FileExistsError:
                self._epoll.modify(descriptor, events)
            except OSError as error:  # a connection of a kind that cannot be watched
                del self._watched[descriptor]
                log.debug("cannot watch %d: %r", descriptor, error)
            if self._thread is None or not self._thread.is_alive():
                name = "webapp-hangups"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        # The epoll is waited for as any descriptor is, and asked then without waiting: so
        # where gevent has put its own poll here, other greenlets go on.
        poll = select.poll()
        poll.register(self._epoll.fileno(), select.POLLIN)
        while (epoll := self._epoll) is not None:
            with suppress(InterruptedError):
                poll.poll()
            try:
                self._tell(self._gone(epoll))
            except (OSError, ValueError):  # closed
                return

    def _gone(self, epoll: Any) -> list[Callable[[], object]]:
        """Take whom to tell; nobody can end a watch meanwhile and use its number again."""
        with self._guard:
            gone = [descriptor for descriptor, _ in epoll.poll(0)]
            for descriptor in gone:
                with suppress(OSError):
                    epoll.unregister(descriptor)
            found = [self._watched.pop(descriptor, None) for descriptor in gone]
        return [each for each in found if each is not None]

    def _tell(self, receivers: list[Callable[[], object]]) -> None:
        for on_hangup in receivers:
            try:
                on_hangup()
            except Exception:
                log.exception("could not tell of a client that has gone")


def hangups() -> Hangups:
    """Return the one of this process; a fork has its own."""
    while not _of_process:
        _of_process.append(Hangups())  # of two threads here both take the first
    return _of_process[0]


_of_process: list[Hangups] = []


def _begin_anew() -> None:
    for each in _of_process:
        each.close()  # our copy of the descriptor; the parent's goes on
    _of_process.clear()


os.register_at_fork(after_in_child=_begin_anew)


def _new_epoll() -> Any:
    """Return an epoll; gevent hides it from those who would block in it, which we do not."""
    make = getattr(select, "epoll", None)
    if make is None and (monkey := sys.modules.get("gevent.monkey")) is not None:
        with suppress(AttributeError):
            make = monkey.get_original("select", "epoll")
    return None if make is None else make()
