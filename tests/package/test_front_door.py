"""What `import celery_batch` gives, and what it does not cost."""

from __future__ import annotations

import celery_batch


def test_everything_announced_can_be_had():
    """Each public name leads to something."""
    missing = [name for name in celery_batch.__all__ if getattr(celery_batch, name, None) is None]

    assert [] == missing


def test_unknown_names_are_refused():
    """A misspelt name says which module does not have it."""
    try:
        celery_batch.BatchTusk  # noqa: B018 (the access is the test)
    except AttributeError as error:
        message = str(error)

    assert "module 'celery_batch' has no attribute 'BatchTusk'" == message


def test_callers_pay_for_neither_torch_nor_the_worker(in_python):
    """A web process that sends tasks imports no torch and none of the worker's side."""
    loaded = in_python(
        "import sys, celery_batch; celery_batch.BatchTask; celery_batch.Model;"
        "import workers.infill; workers.infill.infill.name;"
        "print([m for m in sys.modules if m == 'torch' or m.startswith('celery_batch.worker')])"
    )

    assert "[]" == loaded
