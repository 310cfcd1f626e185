"""Where a streamer's Redis is: service-streamer's addresses and Celery's URLs."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_batch import ConfigurationError, RedisStreamer, RedisWorker
from celery_batch.streamer.redis_app import app_for, connection_settings, queue_of, task_of


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CELERY_BATCH_REDIS_BROKER", raising=False)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("localhost:6379", "redis://localhost:6379/0"),
        ("172.22.22.22:6380", "redis://172.22.22.22:6380/0"),
        ("redis", "redis://redis:6379/0"),
        ("[::1]:6379", "redis://[::1]:6379/0"),
        ("redis://user:secret@host:1/3", "redis://user:secret@host:1/3"),
        ("redis+socket:///tmp/r.sock?virtual_host=2", "redis+socket:///tmp/r.sock?virtual_host=2"),
        ("rediss://host:1/0", "rediss://host:1/0?ssl_cert_reqs=required"),
        ("rediss://host:1/0?ssl_cert_reqs=none", "rediss://host:1/0?ssl_cert_reqs=none"),
    ],
)
def test_addresses(given: str, url: str):
    """Broker and result backend are one Redis."""
    settings = connection_settings(given)

    assert (url, url) == (settings["broker_url"], settings["result_backend"])


def test_a_sentinel_gets_the_masters_name():
    """The name of the Redis that Sentinels look after stands in the URL."""
    settings = connection_settings("sentinel://:pw@a:1;sentinel://:pw@b:2/1?master_name=main")

    assert "sentinel://:pw@a:1;sentinel://:pw@b:2/1" == settings["broker_url"]
    assert {"master_name": "main"} == settings["broker_transport_options"]
    assert {"master_name": "main"} == settings["result_backend_transport_options"]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("amqp://host//", "amqp:// is no Redis"),
        ("sentinel://a:1/0", "master_name"),
        ("host:port", "'host:port' is no address"),
        ("", "'' is no address"),
        (5, r"redis_broker: must be a text, host:port or redis://\.\.\., got 5"),
    ],
)
def test_what_is_no_redis_is_refused(given: object, complaint: str):
    """The error names what was given and what to write."""
    with pytest.raises(ConfigurationError, match=complaint):
        connection_settings(given)


def test_the_environment_says_what_the_default_means(monkeypatch: pytest.MonkeyPatch):
    """Programs that name no Redis find theirs; those that name one keep it."""
    monkeypatch.setenv("CELERY_BATCH_REDIS_BROKER", "redis://other:1/2")

    assert "redis://other:1/2" == connection_settings("localhost:6379")["broker_url"]
    assert "redis://mine:6379/0" == connection_settings("mine")["broker_url"]


def test_the_applications_own_broker_is_another(monkeypatch: pytest.MonkeyPatch):
    """What the environment says of Celery's broker and backend is not about streamers."""
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://tasks:1/0")
    monkeypatch.setenv("CELERY_RESULT_BACKEND", "redis://tasks:1/1")
    app = app_for("host:2")

    assert ("host", 2) == (app.connection_for_write().hostname, app.connection_for_write().port)
    assert ("host", 2) == (app.connection_for_read().hostname, app.connection_for_read().port)
    assert "redis://host:2/0" == app.backend.as_uri()


def test_the_applications_own_tasks_are_others():
    """Neither a streamer nor a worker adds its task to other Celery apps of the program."""
    RedisStreamer("host:2", prefix="apart")
    RedisWorker(len, 8, redis_broker="host:2", prefix="apart")
    with Celery(set_as_current=False) as app:
        app.finalize()

        assert "streamer.apart.predict" not in app.tasks


def test_names():
    """A prefix names its queue, and the task that its items are."""
    assert ("streamer", "streamer.predict") == (queue_of(""), task_of(""))
    assert ("streamer.bert", "streamer.bert.predict") == (queue_of("bert"), task_of("bert"))
    with pytest.raises(ConfigurationError, match="prefix"):
        queue_of(None)
