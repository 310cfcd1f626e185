"""Clients and keys of Celery's Redis backends."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.backends.redis import RedisBackend, SentinelBackend

from celery_batch.compat.results import client_of, key_prefix
from celery_batch.processes.redis_server import RedisServer


def test_clients_are_new(redis_server: RedisServer):
    """Each has connections of its own, with its own parameters, to the backend's server."""
    app = Celery("results", backend=redis_server.url, set_as_current=False)
    backend: Any = app.backend
    params = {**backend.connparams, "socket_timeout": 7.5}
    clients = [client_of(backend, params) for _ in range(2)]

    assert all(each.ping() for each in clients)
    pools = {id(each.connection_pool) for each in (*clients, backend.client)}
    assert len(pools) == 3
    assert [7.5] * 2 == [each.connection_pool.connection_kwargs["socket_timeout"]
                         for each in clients]  # fmt: skip
    assert backend.connparams.get("socket_timeout") != 7.5


def test_clients_of_sentinels():
    """They ask the sentinels for the master."""
    app = Celery("results", set_as_current=False)
    app.conf.result_backend_transport_options = {"master_name": "mine"}
    backend = SentinelBackend(app=app, url="sentinel://localhost:1;sentinel://localhost:2")
    client = client_of(backend, dict(backend.connparams))

    assert client.connection_pool.service_name == "mine"


@pytest.mark.parametrize(
    ("options", "prefix"),
    [
        ({}, ""),
        ({"global_keyprefix": "mine-"}, "mine-"),
        ({"global_keyprefix": None}, ""),
        (None, ""),
    ],
)
def test_key_prefix(options: Any, prefix: str):
    """It is that of the setting."""
    app = Celery("results", set_as_current=False)
    backend = RedisBackend(app=app, url="redis://localhost:1")
    app.conf.result_backend_transport_options = options

    assert prefix == key_prefix(backend)
