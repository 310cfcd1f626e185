"""How far a backfill has come that nobody can ask any more: what lies beside its output says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery_batch.backfill.about import About
from celery_batch.backfill.failures import Failures
from celery_batch.backfill.ledger import Ledger
from celery_batch.errors import BackfillError

__all__ = ["ending"]


def ending(output: Path) -> dict[str, Any]:
    """
    Return what is known of a backfill, as plain data.

    Args:
        output: The path that it was given.

    Returns:
        ``output``, ``task``, ``complete``, ``rows`` (None where an older release has written
        it), ``failed``, and ``at``: of what time that is, as seconds of the epoch.

    Raises:
        BackfillError: None has written there, or what it wrote cannot be read.
    """
    journal = Ledger.paths(output)[1]
    made = About(output).read()
    if output.exists() and made:
        at, rows, failed = output, made.get("rows"), Failures(output).count()
    else:
        at, state = journal, Ledger.state(output)
        if state is None:
            raise BackfillError(f"{output}: no backfill has written there")
        made, failed = state["about"], state["failed"]
        rows = sum(end - first for first, end in state["done"])
    return {
        "output": str(output.resolve()),
        "task": made.get("task"),
        "complete": at is output,
        "rows": rows,
        "failed": failed,
        "at": at.stat().st_mtime,
    }
