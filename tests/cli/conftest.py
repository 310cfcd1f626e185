"""Ways to see that a Redis and its folder are gone."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest


@pytest.fixture
def watch():
    """Connect to the Redis in a folder, with a connection that ends when that Redis ends."""
    with contextlib.ExitStack() as connections:

        def watch(directory):
            connection = connections.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(60)
            connection.connect(f"{directory}/redis.sock")
            return connection

        yield watch


@pytest.fixture
def vanishes():
    """Say whether a folder is removed soon."""

    def vanishes(path):
        deadline = time.monotonic() + 60
        while path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return not path.exists()

    return vanishes
