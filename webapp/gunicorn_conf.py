"""
What gunicorn has to be told with ``--preload``: ``-c python:webapp.gunicorn_conf``.

The app is made before the processes are that serve it, and before these have their handlers
of signals; a thread that answers cannot look for those.
"""

from __future__ import annotations

from typing import Any

from webapp.service import service_contract

__all__ = ["post_worker_init"]


def post_worker_init(worker: Any) -> None:
    """
    End open streams when this process is told to stop.

    Args:
        worker: gunicorn's, in its own process and main thread.
    """
    del worker
    service_contract().closing.listen()
