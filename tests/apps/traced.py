"""
An app under observation: Sentry's and OpenTelemetry's own Celery instrumentation.

``OBSERVED_BY`` chooses one.  What would be sent away is kept for the tests to read.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import signals

from celery_batch import BatchTask
from tests.apps.small_app import remember, small_app

app = small_app("traced")
#: A batch leaves when all calls of its test are there, however slowly they come.
BATCH = {"base": BatchTask, "max_wait": 100.0, "linger": 100.0}


def observe_with_opentelemetry() -> None:
    """Instrument this process; remember every span that ends."""
    from opentelemetry import trace  # noqa: PLC0415 (one of two, chosen by the environment)
    from opentelemetry.instrumentation.celery import CeleryInstrumentor  # noqa: PLC0415
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import (  # noqa: PLC0415
        SimpleSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )

    class Memory(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            remember("spans", *map(facts, spans))
            return SpanExportResult.SUCCESS

    def facts(span: ReadableSpan) -> dict[str, Any]:
        return {
            "name": span.name,
            "trace": span.context.trace_id,
            "id": span.context.span_id,
            "parent": span.parent and span.parent.span_id,
            "task_id": span.attributes.get("messaging.message.id"),
            "begin": span.start_time,
            "end": span.end_time,
            "links": [link.context.span_id for link in span.links],
            "attributes": dict(span.attributes),
            "status": span.status.status_code.name,
            "events": [event.name for event in span.events],
        }

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Memory()))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()


def observe_with_sentry() -> None:
    """Instrument this process; remember every envelope."""
    import sentry_sdk  # noqa: PLC0415 (one of two, chosen by the environment)
    from sentry_sdk.integrations.celery import CeleryIntegration  # noqa: PLC0415
    from sentry_sdk.transport import Transport  # noqa: PLC0415

    class Memory(Transport):
        def capture_envelope(self, envelope: Any) -> None:
            for item in envelope.items:
                if item.type in ("event", "transaction"):
                    remember(item.type, item.payload.json)

    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1",
        transport=Memory,
        traces_sample_rate=1.0,
        integrations=[CeleryIntegration()],
        default_integrations=False,
    )


match os.environ.get("OBSERVED_BY"):
    case "opentelemetry":
        signals.worker_process_init.connect(lambda **_: observe_with_opentelemetry(), weak=False)
    case "sentry":
        signals.celeryd_init.connect(lambda **_: observe_with_sentry(), weak=False)


def inside() -> None:
    """Trace a part of the model, as a library that it uses would."""
    if os.environ.get("OBSERVED_BY") == "opentelemetry":
        from opentelemetry import trace  # noqa: PLC0415 (one of two, chosen by the environment)

        with trace.get_tracer("library").start_as_current_span("inside"):
            pass


@app.task(name="traced.model", max_batch_size=4, **BATCH)
def model(x):
    """Take a while; fail the items that are to fail."""
    time.sleep(0.2)
    inside()
    return [ValueError(f"cannot {one}") if str(one).startswith("bad") else one for one in x]


@signals.task_prerun.connect(weak=False)
def mark(task_id: str, args: Any, **_: Any) -> None:
    """Mark an item's own Sentry scope, as a hook of an application would."""
    if os.environ.get("OBSERVED_BY") == "sentry":
        import sentry_sdk  # noqa: PLC0415 (one of two, chosen by the environment)

        sentry_sdk.set_tag(f"mark.{args[0]}", task_id)


@app.task(name="traced.broken", max_batch_size=3, isolate_failures=False, **BATCH)
def broken(x):
    """Fail altogether."""
    raise RuntimeError(f"the model broke on {len(x)}")
