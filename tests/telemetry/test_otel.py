"""Processes with and without tracing."""

from __future__ import annotations

from contextlib import nullcontext

from opentelemetry import trace

from celery_batch.telemetry.otel import BatchSpan


def test_an_import_is_no_tracing():
    """A library may import OpenTelemetry without tracing; batches have no spans then."""
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    assert isinstance(BatchSpan("double").around_model(1), nullcontext)
