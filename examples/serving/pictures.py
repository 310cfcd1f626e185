"""Pictures as they come in requests, and as the networks want them."""

from __future__ import annotations

import base64
import binascii
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["BadPicture", "centre_crop", "channels_first", "decode", "letterbox"]

#: A small file can say it is a picture of a terabyte; this many are a large camera's.
_MOST_PIXELS = 64_000_000

#: Not all that Pillow reads: some formats start programs.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")

#: The grey that YOLO was trained to see beside a picture.
_GREY = (128, 128, 128)

_BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)


class BadPicture(ValueError):
    """What was sent is not a picture that can be read."""


def decode(text: object) -> Image.Image:
    """
    Read a picture from the text of a request.

    Args:
        text: The file, JPEG, PNG, WebP or BMP, in base64.

    Returns:
        The picture in red, green and blue.

    Raises:
        BadPicture: It is no base64, no picture, half a picture, or far too large.
    """
    if not isinstance(text, str):
        raise BadPicture("img: must be the picture's file in base64, as a text")
    try:
        file = io.BytesIO(base64.b64decode(text, validate=True))
        picture = Image.open(file, formats=_FORMATS)
        width, height = picture.size
        if width * height > _MOST_PIXELS:
            raise BadPicture(f"img: {width} x {height} pixels, at most {_MOST_PIXELS} in all")
        return picture.convert("RGB")
    except binascii.Error as error:
        raise BadPicture(f"img: no base64: {error}") from error
    except (OSError, SyntaxError, *_BOMBS) as error:
        raise BadPicture(f"img: no picture that can be read: {error}") from error


def centre_crop(picture: Image.Image, *, edge: int, side: int) -> Image.Image:
    """
    Make the shorter edge so many pixels long and cut the square out of the middle.

    Args:
        picture: What to take it from.
        edge: Pixels of the shorter edge before the cut.
        side: Pixels of the square's sides.
    """
    # In the pixels of the picture: what is cut off need not be scaled first.
    width, height = picture.size
    cut = min(width, height) * side / edge
    left, top = (width - cut) / 2, (height - cut) / 2
    box = (left, top, left + cut, top + cut)
    return picture.resize((side, side), Image.Resampling.BILINEAR, box=box)


def letterbox(picture: Image.Image, side: int) -> Image.Image:
    """
    Fit the whole picture into a square, with grey bars beside it.

    Args:
        picture: What to fit in; its proportions stay.
        side: Pixels of the square's sides.
    """
    scale = side / max(picture.size)
    width, height = (max(1, int(scale * length)) for length in picture.size)
    square = Image.new("RGB", (side, side), _GREY)
    fitted = picture.resize((width, height), Image.Resampling.BICUBIC)
    square.paste(fitted, ((side - width) // 2, (side - height) // 2))
    return square


def channels_first(picture: Image.Image) -> NDArray[np.float32]:
    """Return the picture's channels one after another, each value from 0 to 1."""
    values = np.asarray(picture, dtype=np.float32) / np.float32(255)
    return np.ascontiguousarray(values.transpose(2, 0, 1))
