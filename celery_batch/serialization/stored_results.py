"""Has the result backends of any process read and forget what is stored beside a result."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from celery_batch.compat.backend_hooks import call_with_backends, forget_with, read_meta_with
from celery_batch.protocol import PAYLOADS

__all__ = ["register_stored_results"]


def register_stored_results() -> None:
    """Have Celery's result backends do it, once they are imported."""
    call_with_backends(_register)


def _register(kind: Any) -> None:
    read_meta_with(kind, PAYLOADS, _restored)
    forget_with(kind, _release)


def _restored(backend: Any, meta: Any) -> Any:
    return import_module("celery_batch.payloads.results").restored(backend, meta)


def _release(backend: Any, task_id: str) -> None:
    if "celery.backends.redis" in sys.modules:  # only its results have anything beside them
        import_module("celery_batch.payloads.results").release(backend, task_id)
