"""Kombu's decompression, with an end."""

from __future__ import annotations

import bz2
import lzma
import zlib

import pytest
from kombu import compression
from kombu.exceptions import DecodeError

from celery_batch.worker.intake.validation import limit_decompression

METHODS = ("zlib", "bzip2", "lzma")

BOMBS = {"zlib": zlib.compress, "bzip2": bz2.compress, "lzma": lzma.compress}


@pytest.fixture(autouse=True)
def _limited(monkeypatch: pytest.MonkeyPatch):
    """A limit of 1,000 bytes, for this test only."""
    for registry in ("_encoders", "_decoders"):
        monkeypatch.setattr(compression, registry, dict(getattr(compression, registry)))
    limit_decompression(1000)


@pytest.mark.parametrize("method", METHODS)
def test_a_body_cut_short_is_refused(method: str):
    """Half a body is an error, as it is for kombu."""
    compressed = BOMBS[method](bytes(range(250)))
    with pytest.raises(DecodeError, match="cut short"):
        compression.decompress(compressed[: len(compressed) // 2], method)


def test_a_later_limit_counts():
    """A worker started later in the same process has its own limit."""
    limit_decompression(2000)

    assert bytes(1500) == compression.decompress(zlib.compress(bytes(1500)), "zlib")


def test_a_decoder_of_the_user_s_own_is_left_alone():
    """What somebody has registered is theirs."""
    compression.register(zlib.compress, bytes.upper, "application/x-gzip")
    limit_decompression(1000)

    assert b"ABC" == compression.decompress(b"abc", "gzip")
