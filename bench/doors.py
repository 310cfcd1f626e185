"""What the web tier's doors lead to in benchmarks: the model "cost"."""

from __future__ import annotations

from bench.app import app, naive, web
from webapp.contract import Contract
from webapp.settings import Settings

__all__ = ["app", "contract"]


def contract() -> Contract:
    """Make a contract of the benchmarks' tasks; nobody reads its access log."""
    return Contract(web, naive, Settings(timeout=30.0, log="off"))
