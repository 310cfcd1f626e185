"""
What kombu loads in each process where celery_batch is installed: its serializers.

With them such a process reads whole results, also those that are stored beside their meta data.

Kombu imports this module, an entry point, while it is imported itself.  Therefore nothing here
imports more of kombu than its JSON; an error here would be one of each program with Celery.
"""

from __future__ import annotations

from celery_batch.compat.backend_hooks import register_stored_results
from celery_batch.serialization.binary import CONTENT_TYPE, decode_binary, encode_binary
from celery_batch.serialization.typed_json import register_decoders

__all__ = ["BATCH_MSGPACK"]

# What a program encodes is its own, until it has batch tasks.
register_decoders()
register_stored_results()

#: The arguments of `kombu.serialization.register`.
BATCH_MSGPACK = (encode_binary, decode_binary, CONTENT_TYPE, "binary")
