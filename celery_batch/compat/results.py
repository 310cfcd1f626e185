"""Uses of the private parts of Celery's result backends, and changes to their methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from celery.states import EXCEPTION_STATES, READY_STATES
from kombu.utils.url import maybe_sanitize_url
from redis.retry import Retry

__all__ = [
    "client_of",
    "key_prefix",
    "largest_value",
    "notify_of_ends",
    "on_new_backend",
    "quick_client",
    "result_meta",
    "shown_url",
    "store_with",
]


def key_prefix(backend: Any) -> str:
    """Return what all keys and channels of a Redis backend begin with."""
    options = backend.app.conf.get("result_backend_transport_options") or {}
    return str(options.get("global_keyprefix") or "")


def shown_url(backend: Any) -> str:
    """Return a backend's URL as settings have it, without passwords."""
    url = str(maybe_sanitize_url(str(backend.as_uri())))
    if not url.startswith("socket:"):
        return url
    # Celery cuts off "redis+", and all after the path, which may have a password.
    query = urlsplit(str(backend.url)).query.split("&")
    shown = "&".join(each for each in query if each.startswith("virtual_host="))
    return f"redis+{url}?{shown}" if shown else f"redis+{url}"


def client_of(backend: Any, params: dict[str, Any]) -> Any:
    """Return a new client of a Redis backend's server, or of its sentinels' master."""
    return backend._create_client(**params)


def quick_client(backend: Any, timeout: float, retry: Retry, **params: Any) -> Any:
    """Return a new client of a Redis backend's server that waits for so many seconds at most."""
    params = {**backend.connparams, "max_connections": None, **params}
    is_socket = "path" in params
    for name in ("socket_timeout", *([] if is_socket else ["socket_connect_timeout"])):
        params[name] = min(params.get(name) or timeout, timeout)
    client = client_of(backend, params)
    client.set_retry(retry)
    return client


def store_with(backend: Any, store: Callable[..., Any]) -> Callable[..., Any]:
    """Have a Redis backend store all results with a function; return its class's own method."""
    backend._store_result = store
    return type(backend)._store_result.__get__(backend)  # type: ignore[no-any-return]


def result_meta(backend: Any) -> Callable[..., dict[str, Any]]:
    """Return what makes the meta data of a result, ``task_id`` apart, for a Redis backend."""
    return backend._get_result_meta  # type: ignore[no-any-return]


def largest_value(backend: Any) -> int:
    """Return how many bytes a value has at most that a Redis backend stores."""
    return int(backend._MAX_STR_VALUE_SIZE)


def on_new_backend(app: Any, callback: Callable[[Any], object]) -> None:
    """Call a function, the first given, with each backend that an app makes: one a thread."""
    if "_get_backend" in vars(app):
        return
    make = app._get_backend

    def make_and_call() -> Any:
        backend = make()
        callback(backend)
        return backend

    app._get_backend = make_and_call


def notify_of_ends(kind: type, notify: Callable[[str, Any, Any], object]) -> None:
    """Have backends of a class call `notify` with the id, the error and the result of each end."""
    if "notifies_of_ends" in vars(kind):
        return
    done, store = kind.mark_as_done, kind.store_result  # type: ignore[attr-defined]

    @wraps(done)  # which stores nothing where results are ignored
    def mark_as_done(self: Any, task_id: str, result: Any, *args: Any, **options: Any) -> Any:
        found = done(self, task_id, result, *args, **options)
        notify(task_id, None, result)
        return found

    @wraps(store)
    def store_result(
        self: Any, task_id: str, result: Any, state: str, *args: Any, **more: Any
    ) -> Any:
        found = store(self, task_id, result, state, *args, **more)
        if state in READY_STATES:
            notify(task_id, *((result, None) if state in EXCEPTION_STATES else (None, result)))
        return found

    for method in (mark_as_done, store_result):
        setattr(kind, method.__name__, method)
    kind.notifies_of_ends = True  # type: ignore[attr-defined]
