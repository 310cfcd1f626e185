"""
The main colours of pictures, which anybody can check by looking at them.

Files go to the worker as bytes, packed by msgpack.  There are no weights: each pixel of a small
copy counts for the colour with a name that looks most like it.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from celery_batch import Model
from workers.celery import app

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NAMED", "MainColours", "colours"]

#: Red, green and blue of each name, of 255, in shades that people call by it.
NAMED = {
    "black": ((0, 0, 0), (28, 28, 28)),
    "grey": ((128, 128, 128), (70, 70, 70), (165, 165, 165)),
    "silver": ((192, 192, 192), (212, 212, 212)),
    "white": ((255, 255, 255), (240, 240, 240)),
    "red": ((255, 0, 0), (200, 20, 30), (225, 60, 60)),
    "maroon": ((128, 0, 0), (100, 20, 30)),
    "brown": ((139, 69, 19), (92, 64, 51), (160, 110, 70)),
    "orange": ((255, 165, 0), (255, 120, 0)),
    "yellow": ((255, 255, 0), (240, 210, 60)),
    "olive": ((128, 128, 0), (85, 95, 45)),
    "lime": ((0, 255, 0), (150, 255, 80)),
    "green": ((0, 128, 0), (40, 160, 70), (25, 75, 35)),
    "teal": ((0, 128, 128), (0, 165, 155)),
    "cyan": ((0, 255, 255), (120, 235, 235)),
    "sky blue": ((135, 206, 235), (90, 160, 230)),
    "blue": ((0, 0, 255), (30, 90, 200), (65, 65, 220)),
    "navy": ((0, 0, 128), (20, 35, 80)),
    "purple": ((128, 0, 128), (150, 80, 190)),
    "magenta": ((255, 0, 255), (220, 40, 150)),
    "pink": ((255, 192, 203), (255, 140, 170)),
    "beige": ((245, 245, 220), (225, 200, 165)),
}

_FORMATS = ("GIF", "JPEG", "PNG", "WEBP")
#: Of the largest picture that is decoded: a few bytes can claim any number of pixels.
_MOST_PIXELS = 50_000_000
#: The longer side of the copy, in pixels.
_SIDE = 64
#: Colours that one answer has at most, and the least share of one.
_MOST, _LEAST = 5, 0.01
#: The opacity, of 255, from which on a pixel counts.
_OPAQUE = 128

#: Below it sRGB is linear.
_DARK = 0.04045
#: From sRGB to XYZ, each row over the white of daylight (D65): IEC 61966-2-1.
_XYZ = (
    (0.4124 / 0.9505, 0.3576 / 0.9505, 0.1805 / 0.9505),
    (0.2126, 0.7152, 0.0722),
    (0.0193 / 1.089, 0.1192 / 1.089, 0.9505 / 1.089),
)
#: From XYZ's cube roots to L*, a* and b*: CIE 1976.
_LAB = ((0.0, 116.0, 0.0), (500.0, -500.0, 0.0), (0.0, 200.0, -200.0))


class MainColours(Model):
    """
    A model that names the colours of a picture, and the share of each.

    It answers with ``[{"name": "red", "share": 0.5}, ...]``, the largest share first, and with
    a ValueError for what is no picture.
    """

    def load(self, device: str) -> None:
        import torch

        shades = [(number, shade) for number, name in enumerate(NAMED) for shade in NAMED[name]]
        self.numbers = torch.tensor([number for number, _ in shades], device=device)
        self.known = _lab(torch.tensor([shade for _, shade in shades], device=device))
        self.device = device

    def examples(self) -> list[bytes]:
        from PIL import Image

        file = io.BytesIO()
        Image.new("RGB", (32, 16), "red").save(file, "PNG")
        return [file.getvalue()]

    def predict(self, batch: list[Any]) -> list[list[dict[str, Any]] | ValueError]:
        pictures = [_pixels(item) for item in batch]
        good = [pixels for pixels in pictures if not isinstance(pixels, ValueError)]
        answers = iter(self._shares(good) if good else ())
        return [each if isinstance(each, ValueError) else next(answers) for each in pictures]

    def _shares(self, pictures: list[Tensor]) -> list[list[dict[str, Any]]]:
        """Name the pixels of all pictures at once, and count those of each."""
        import torch

        pixels = _lab(torch.cat(pictures).to(self.device))
        numbers = self.numbers[torch.cdist(pixels, self.known).argmin(1)].cpu()
        names, answers = list(NAMED), []
        for part in torch.split(numbers, [len(each) for each in pictures]):
            shares, best = (torch.bincount(part, minlength=len(names)) / len(part)).topk(_MOST)
            pairs = zip(best.tolist(), shares.tolist(), strict=True)
            answers.append(
                [
                    {"name": names[n], "share": round(share, 3)}
                    for n, share in pairs
                    if share >= _LEAST
                ]
            )
        return answers


def _pixels(item: Any) -> Tensor | ValueError:
    """Return red, green and blue of each opaque pixel of a small copy, or what is wrong."""
    import torch
    from PIL import Image

    try:
        with Image.open(io.BytesIO(item), formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                return ValueError(f"{image.width} x {image.height} pixels are too many")
            image.thumbnail((_SIDE, _SIDE), Image.Resampling.NEAREST)
            small = image.convert("RGBA").tobytes()
    except Exception:  # noqa: BLE001 (each format has its own errors, and all mean the same)
        return ValueError("this is no readable GIF, JPEG, PNG or WebP")
    rgba = torch.frombuffer(bytearray(small), dtype=torch.uint8).view(-1, 4)
    opaque = rgba[rgba[:, 3] >= _OPAQUE, :3]
    return opaque if len(opaque) else ValueError("the picture is transparent all over")


def _lab(rgb: Tensor) -> Tensor:
    """Turn sRGB, of 255, into CIE's L*, a* and b*, where what is near looks alike."""
    import torch

    value = rgb.float() / 255
    linear = torch.where(value <= _DARK, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    xyz = linear @ torch.tensor(_XYZ, device=rgb.device).T
    root = torch.where(xyz > 216 / 24389, xyz.pow(1 / 3), (24389 / 27 * xyz + 16) / 116)
    return root @ torch.tensor(_LAB, device=rgb.device).T


# The worker holds three batches of files, which may have 10 MB each.
colours = MainColours.as_task(app, name="workers.colours", serializer="msgpack", max_batch_size=8)
