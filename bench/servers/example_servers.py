"""The web servers of `examples`, with the "bert" model in place of the real one."""

from __future__ import annotations

from flask import Flask

from bench.models.bert import BertModel
from examples import infill_naive, infill_processes, infill_redis, infill_threaded

__all__ = ["naive", "redis", "streamer", "threaded"]


def naive() -> Flask:
    """Make the web server that runs the model for each request."""
    return infill_naive.create_app(BertModel)


def threaded() -> Flask:
    """Make the web server with the model in a thread."""
    return infill_threaded.create_app(BertModel)


def streamer() -> Flask:
    """Make the web server with the model in a process."""
    return infill_processes.create_app(BertModel)


def redis() -> Flask:
    """Make the web server with the models behind Redis."""
    return infill_redis.create_app()
