"""The event loop, with kombu's waker and with ours."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kombu.asynchronous import Hub
from vine import promise

from celery_batch.compat import kombu
from celery_batch.compat.kombu import wake_for_callbacks


class OlderHub(Hub):
    """A loop that no thread wakes, as before kombu 5.7."""

    def call_soon(self, callback: Any, *args: Any) -> Any:
        """Add a callback for the next pass."""
        added = promise(callback, args)
        with self._ready_lock:
            self._ready.add(added)
        return added


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A broker's socket, on which nothing comes; without one the loop does not wait."""
    end, other = socket.socketpair()
    with end, other:
        yield end


@pytest.fixture(params=["kombu's", "ours"])
def hub(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, silent: socket.socket
) -> Iterator[Hub]:
    """A loop with one of the wakers, which has a descriptor to wait for."""
    if request.param == "ours":
        monkeypatch.setattr(kombu, "_WAKER", "no such name")
    elif not hasattr(Hub(), "_waker"):
        pytest.skip("kombu before 5.7 has no waker")
    hub = OlderHub() if request.param == "ours" else Hub()
    wake_for_callbacks(hub)
    hub.add_reader(silent, print)
    yield hub
    hub.close()


class Call:
    """A callback that ends the loop; an idle one would have had it wait for a second."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._started = time.monotonic()
        self._after = 0.0

    def __call__(self) -> None:
        """Note how long after the beginning this is."""
        self._after = time.monotonic() - self._started
        self._hub.stop()

    def is_soon(self) -> bool:
        """Run the loop until this is called."""
        self._hub.run_forever()
        self._hub._loop = None
        return self._after < 0.8


def test_another_thread_wakes_the_loop(hub: Hub):
    """What another thread gives to `call_soon` runs at once, every time."""
    for _ in range(3):
        call = Call(hub)
        thread = threading.Timer(0.05, hub.call_soon, (call,))
        thread.start()

        assert call.is_soon()
        thread.join()


def test_a_callback_of_the_loop_does_not_wait(hub: Hub):
    """What a callback gives to `call_soon` runs in the next pass, without a second between."""
    call = Call(hub)
    hub.call_soon(hub.call_soon, hub.call_soon, call)

    assert call.is_soon()


def test_a_loop_that_was_reset_is_woken(hub: Hub, silent: socket.socket):
    """After a lost connection Celery resets its loop, which can still be woken."""
    hub.call_soon(print)
    next(hub.loop)
    hub.reset()
    hub._loop = None
    hub.add_reader(silent, print)
    call = Call(hub)
    thread = threading.Timer(0.05, hub.call_soon, (call,))
    thread.start()

    assert call.is_soon()
    thread.join()


def test_it_is_prepared_once(hub: Hub):
    """Each connection of a worker asks for it, on the same loop."""
    before = hub.call_soon, hub.fire_timers, set(hub.on_tick)

    wake_for_callbacks(hub)

    assert (hub.call_soon, hub.fire_timers, set(hub.on_tick)) == before
