"""Processes with and without tracing."""

from __future__ import annotations

from opentelemetry import trace

from celery_batch.telemetry.otel import BatchSpan


def test_an_import_is_no_tracing():
    """A library may import OpenTelemetry without tracing; batches have no spans then."""
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    with BatchSpan("double").around_model(1):
        span = trace.get_current_span()

    assert not span.get_span_context().is_valid
