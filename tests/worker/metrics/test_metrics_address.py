"""The address of a worker's metrics, and the library that they need."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_batch.errors import ConfigurationError
from celery_batch.worker.metrics.exporter import _Exporter, address_of


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        (9808, "127.0.0.1:9808"),
        ("9808", "127.0.0.1:9808"),
        (":9808", ":9808"),
        ("gpu-host:9808-9815", "gpu-host:9808-9815"),
        ("[::1]:0", "::1:0"),
    ],
)
def test_address_is_a_host_and_ports(given: str | int, understood: str):
    """A port alone is on localhost; a colon before it means all addresses."""
    app = Celery(set_as_current=False)
    app.conf.batch_metrics = given

    assert understood == str(address_of(app, {}))


@pytest.mark.parametrize("given", ["", None])
def test_metrics_are_off_by_default(given: str | None):
    """Metrics are off by default and with an empty value."""
    app = Celery(set_as_current=False)
    app.conf.batch_metrics = given

    assert address_of(app, {}) is None


def test_environment_overrides_the_setting():
    """The variable of one worker overrides the setting of all."""
    app = Celery(set_as_current=False)
    app.conf.batch_metrics = "127.0.0.1:9808"

    assert "127.0.0.1:9900" == str(address_of(app, {"CELERY_BATCH_METRICS": "9900"}))
    assert address_of(app, {"CELERY_BATCH_METRICS": ""}) is None


@pytest.mark.parametrize("given", [True, "here", "a:b", "70000", "9000-8000", -1])
def test_invalid_address_is_an_error(given: object):
    """The error names the setting and the valid forms."""
    app = Celery(set_as_current=False)
    app.conf.batch_metrics = given

    with pytest.raises(ConfigurationError, match=r"batch_metrics: must be HOST:PORT"):
        address_of(app, {})


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch):
    """Without prometheus_client the error says how to install it."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    address = address_of(Celery(set_as_current=False), {"CELERY_BATCH_METRICS": "9808"})

    assert address is not None
    with pytest.raises(ConfigurationError, match=r'pip install "celery-batch\[metrics\]"'):
        _Exporter(SimpleNamespace(), address, SimpleNamespace())  # type: ignore[arg-type]
