"""Result backends of tasks' own: what is kept there is told to nobody."""

from __future__ import annotations

from typing import Any

from celery.backends.rpc import RPCBackend

__all__ = ["is_elsewhere", "is_of_thread", "keep_address"]


def is_elsewhere(backend: Any, app: Any) -> bool:
    """
    Return whether a backend is not where an app's listener hears and looks.

    Args:
        backend: Celery's result backend; perhaps the app's, as another thread or process has it.
        app: The Celery app.
    """
    usual = app.backend
    if backend is usual:
        return False
    return type(backend) is not type(usual) or _place(backend) != _place(usual)


def _place(backend: Any) -> tuple[Any, Any]:
    url = backend.as_uri(include_password=True)  # without, two databases look the same
    return url, getattr(backend, "connparams", None)


def is_of_thread(backend: Any) -> bool:
    """
    Return whether results come to the thread that has asked, and to no other's backend.

    Args:
        backend: Celery's result backend.
    """
    return isinstance(backend, RPCBackend)


def keep_address(backend: Any) -> None:
    """
    Have a backend remember where its results come to, so that another thread may look there.

    The backend of RPC takes the address of the thread that uses it first.

    Args:
        backend: Celery's result backend, of the thread that has asked.
    """
    if is_of_thread(backend):
        getattr(backend, "oid")  # noqa: B009 (it is cached once it was read)
