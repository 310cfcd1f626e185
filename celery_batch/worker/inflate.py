"""
Decompression with an end.

Kombu decompresses a message as soon as it arrives, into whatever size it claims:
a few kilobytes can become many gigabytes.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any

from kombu import compression
from kombu.exceptions import DecodeError

from celery_batch.worker.wellformed import TooLarge

__all__ = ["limit_decompression"]

#: Bytes that xz may set aside for its dictionary; its own highest setting takes 65 MiB.
_XZ_MEMORY = 256 << 20


class _TooLarge(TooLarge, DecodeError):
    """A body expands beyond the limit."""


class _Inflate:
    """A decoder for kombu that gives up beyond a size."""

    def __init__(self, begin: Callable[[], Any], limit: int) -> None:
        self._begin = begin
        self._limit = limit

    def __call__(self, data: bytes) -> bytes:
        stream = self._begin()
        found = stream.decompress(data, self._limit + 1)
        if len(found) > self._limit:
            raise _TooLarge(f"its body is larger than {self._limit} bytes when decompressed")
        if not stream.eof:
            raise DecodeError("its compressed body is cut short")
        return bytes(found)


def limit_decompression(limit: int | None) -> None:
    """
    Let kombu decompress no message beyond a size, in this process.

    Args:
        limit: Bytes; None to leave kombu as it is.
    """
    if limit is None:
        return
    for content_type, stock, begin in _streams():
        encode, _ = compression.get_encoder(content_type)
        decode = compression.get_decoder(content_type)
        if decode is stock or isinstance(decode, _Inflate):  # else it is the user's own
            compression.register(encode, _Inflate(begin, limit), content_type)


def _streams() -> list[tuple[str, Any, Callable[[], Any]]]:
    found: list[tuple[str, Any, Callable[[], Any]]] = [
        ("application/x-gzip", zlib.decompress, zlib.decompressobj),
        ("application/x-bz2", bz2.decompress, bz2.BZ2Decompressor),
        (
            "application/x-lzma",
            lzma.decompress,
            lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY),
        ),
    ]
    zstd = getattr(compression, "zstd", None)
    if zstd is not None:
        found.append(("application/zstd", zstd.decompress, zstd.ZstdDecompressor))
    return found
