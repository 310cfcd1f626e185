"""The main colours of pictures: what a person can check by looking at them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from celery_batch import LoadFailed, Model

if TYPE_CHECKING:
    from workers.models.palette import Palette

__all__ = ["FORMATS", "MOST_PIXELS", "MainColours"]

#: What is decoded, by Pillow's names.
FORMATS = ("GIF", "JPEG", "PNG", "WEBP")

#: Pixels of the largest picture that is decoded: a few bytes can claim any number of them.
MOST_PIXELS = 50_000_000

#: Pixels of the longer side of what is looked at; more would change no share by much.
_SIDE = 64

#: Values of the opacity, of 255, from which on a pixel counts.
_OPAQUE = 128


class MainColours(Model):
    """
    A model that names the colours of a picture, and the share of each.

    Every pixel of a small copy counts for the name whose colour looks most like it.
    There are no weights, and nothing is learnt: a chequered flag is half black, half white.
    """

    def __init__(self) -> None:
        self._palette: Palette | None = None

    def load(self, device: str) -> None:
        try:
            import PIL.Image  # noqa: F401, PLC0415 (not at the caller's side)

            from workers.models.palette import Palette  # noqa: PLC0415 (brings in torch)
        except ImportError as exc:
            msg = f"colours need torch and Pillow: pip install 'celery-batch[torch,web]' ({exc})"
            raise LoadFailed(msg) from exc
        self._palette = Palette(device)

    def examples(self) -> list[bytes]:
        return [_drawn("PNG", (2, 3)), _drawn("JPEG", (32, 16))]

    def predict(self, batch: list[Any]) -> list[list[dict[str, Any]] | Exception]:
        """
        Name the main colours.

        Args:
            batch: Files, as bytes: pictures of any sizes.

        Returns:
            For each ``[{"name": "red", "share": 0.5}, ...]``, the largest share first; a
            TypeError or ValueError for what is no picture, without harm to the others.

        Raises:
            RuntimeError: The model is not loaded.
        """
        if self._palette is None:
            msg = "the model is not loaded: call load(device) before predict(batch)"
            raise RuntimeError(msg)
        decoded = [_pixels(item) for item in batch]
        good = [pixels for pixels in decoded if not isinstance(pixels, Exception)]
        answers = iter(self._palette.shares(good) if good else ())
        return [each if isinstance(each, Exception) else next(answers) for each in decoded]

    def unload(self) -> None:
        self._palette = None


def _pixels(item: Any) -> bytes | Exception:
    """Return red, green and blue of each opaque pixel of a small copy, or what is wrong."""
    from PIL import Image  # noqa: PLC0415 (not at the caller's side)

    if not isinstance(item, bytes):
        return TypeError(
            f"an input must be the bytes of a picture's file, not {type(item).__name__}"
        )
    try:
        with Image.open(io.BytesIO(item), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                return ValueError(
                    f"the picture has {image.width} x {image.height} pixels, more than "
                    f"{MOST_PIXELS}: scale it down"
                )
            image.thumbnail((_SIDE, _SIDE), Image.Resampling.NEAREST)
            small = image.convert("RGBA")
    except Exception:  # noqa: BLE001 (each format has its own errors, and all mean the same)
        return ValueError(f"these {len(item)} bytes are no readable GIF, JPEG, PNG or WebP")
    opaque = small.getchannel("A").point(lambda value: 255 * (value >= _OPAQUE))
    seen = small.convert("RGB").tobytes()
    if opaque.getextrema() != (255, 255):
        shown = opaque.tobytes()
        seen = b"".join(seen[3 * at : 3 * at + 3] for at, value in enumerate(shown) if value)
    return seen or ValueError("the picture is transparent all over: there is no colour to name")


def _drawn(kind: str, size: tuple[int, int]) -> bytes:
    from PIL import Image  # noqa: PLC0415 (not at the caller's side)

    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, kind)
    return file.getvalue()
