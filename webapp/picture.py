"""What counts as a picture: told by its first bytes and its header, never decoded in full."""

from __future__ import annotations

import io

from PIL import Image

from webapp.errors import TooLarge, UnreadablePicture, UnsupportedMediaType
from webapp.settings import Settings

__all__ = ["KINDS", "check_picture", "kind_of"]

#: What Pillow calls the formats that are read, by their media types.
KINDS = {"image/gif": "GIF", "image/jpeg": "JPEG", "image/png": "PNG", "image/webp": "WEBP"}

_BEGINNINGS = {
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"\xff\xd8\xff": "image/jpeg",
    b"\x89PNG\r\n\x1a\n": "image/png",
}


def kind_of(data: bytes) -> str | None:
    """
    Return the media type that the first bytes of a file tell; None for any other.

    Args:
        data: The file, or at least its first 12 bytes.
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for mark, kind in _BEGINNINGS.items() if data.startswith(mark)), None)


def check_picture(data: bytes, declared: str | None, name: str, settings: Settings) -> None:
    """
    Check that a file is a picture that a model may be asked about.

    Args:
        data: The file.
        declared: The media type that its sender says it has; None if nothing was said.
        name: What to call it, such as ``picture[0]``.
        settings: The limits.

    Raises:
        TooLarge: It has too many bytes, or would have too many pixels.
        UnsupportedMediaType: It is none of the formats that are read, or not what it claims.
        UnreadablePicture: Its header makes no sense.
    """
    if not data:
        raise UnreadablePicture(f"{name} is empty: send the bytes of a picture")
    if len(data) > settings.max_picture_bytes:
        limit = settings.max_picture_bytes
        raise TooLarge(f"{name} has {len(data)} bytes, the limit is {limit}: send a smaller one")
    kind = kind_of(data)
    if kind is None:
        raise UnsupportedMediaType(f"{name} begins like none of {_ALL}: convert it to one of them")
    if declared not in {None, kind}:
        raise UnsupportedMediaType(f"{name} is called {declared}, but is {kind}: call it that")
    _check_pixels(data, KINDS[kind], name, settings.max_pixels)


def _check_pixels(data: bytes, kind: str, name: str, most: int) -> None:
    try:
        # Reads the header and no pixel.
        with Image.open(io.BytesIO(data), formats=[kind]) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        width, height = most + 1, 1
    except Exception:  # noqa: BLE001 (each format has its own errors, and all mean the same)
        raise UnreadablePicture(f"{name} is damaged: its header cannot be read") from None
    if width * height > most:
        raise TooLarge(f"{name} has more than {most} pixels: scale it down")


_ALL = ", ".join(sorted(KINDS))
