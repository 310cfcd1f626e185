"""Which encoder kombu's JSON uses for a type; kombu imports this as it looks for serializers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu.utils import json

__all__ = ["json_encoder_of"]

#: By type; the first that fits counts.
_encoders: dict[type, tuple[str | None, Callable[[Any], Any]]] = getattr(json, "_encoders", {})


def json_encoder_of(kind: type) -> Callable[[Any], Any] | None:
    """Return what values of a type are encoded with; None where nothing is registered for it."""
    if hasattr(kind, "__json__"):
        return None
    for registered, (_, encoder) in _encoders.items():
        if issubclass(kind, registered):
            return encoder
    return None
