"""A web server in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from flask import Flask
from werkzeug.serving import WSGIRequestHandler, make_server

__all__ = ["served"]


class _Silent(WSGIRequestHandler):
    def log_request(self, *_facts):
        """Keep no log of what goes well."""


@contextmanager
def served(app: Flask) -> Iterator[str]:
    """
    Serve an app in threads of this process, as ``flask run`` does; yield its address.

    All requests have ended when it returns, also those whose clients have gone.
    """
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Silent)
    server.daemon_threads = False
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
