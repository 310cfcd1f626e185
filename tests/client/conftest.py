"""A client whose results are told to it by the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_batch.cli.redis_server import RedisServer
from tests.services.shop import emptied
from tests.services.teller import Teller


@pytest.fixture
def teller(redis_server: RedisServer) -> Iterator[Teller]:
    """A client on an empty Redis."""
    emptied(redis_server)
    with Teller(redis_server) as teller:
        yield teller
