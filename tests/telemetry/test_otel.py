"""When a process traces, and when it only looks so."""

from __future__ import annotations

from opentelemetry import trace

from celery_batch.telemetry.otel import BatchSpan


def test_an_import_is_no_tracing():
    """Libraries import OpenTelemetry for ends of their own; batches pay for no spans then."""
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    assert not BatchSpan("double").is_on
