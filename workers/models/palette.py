"""Colours with names, and which of them each pixel of many pictures looks like."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["NAMED", "Palette"]

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

#: Names that one answer has at most, and the least share of one that is told.
_MOST, _LEAST = 5, 0.01

#: Below it sRGB is linear.
_DARK = 0.04045

#: Of sRGB in XYZ, each row over the white of daylight (D65): IEC 61966-2-1.
_XYZ = (
    (0.4124 / 0.9505, 0.3576 / 0.9505, 0.1805 / 0.9505),
    (0.2126, 0.7152, 0.0722),
    (0.0193 / 1.089, 0.1192 / 1.089, 0.9505 / 1.089),
)

#: Of XYZ's cube roots in L*, a* and b*: CIE 1976.
_LAB = ((0.0, 116.0, 0.0), (500.0, -500.0, 0.0), (0.0, 200.0, -200.0))


class Palette:
    """
    The named colours, on a device.

    Args:
        device: ``"cpu"`` or ``"cuda:0"``.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._names = list(NAMED)
        self._xyz = torch.tensor(_XYZ, device=device)
        self._lab = torch.tensor(_LAB, device=device)
        shades = [(number, shade) for number, name in enumerate(NAMED) for shade in NAMED[name]]
        numbers, known = zip(*shades, strict=True)
        self._number = torch.tensor(numbers, device=device)
        self._known = self._seen_as(torch.tensor(known, dtype=torch.uint8, device=device))

    @torch.inference_mode()
    def shares(self, pictures: list[bytes]) -> list[list[dict[str, Any]]]:
        """
        Count the pixels of all pictures at once.

        Args:
            pictures: Red, green and blue of each pixel, at least one in each.

        Returns:
            For each picture names with their shares, the largest first.
        """
        sizes = torch.tensor([len(picture) // 3 for picture in pictures])
        pixels = torch.frombuffer(bytearray(b"".join(pictures)), dtype=torch.uint8).view(-1, 3)
        owners = torch.repeat_interleave(torch.arange(len(pictures)), sizes).to(self._device)
        nearest = torch.cdist(self._seen_as(pixels.to(self._device)), self._known).argmin(1)
        columns, rows = len(self._names), len(pictures)
        places = owners * columns + self._number[nearest]
        counts = torch.bincount(places, minlength=rows * columns).view(rows, columns).cpu()
        best = (counts / sizes[:, None]).topk(_MOST)
        return [
            [
                {"name": self._names[number], "share": round(share, 3)}
                for share, number in zip(row, numbers, strict=True)
                if share >= _LEAST
            ]
            for row, numbers in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    def _seen_as(self, pixels: Tensor) -> Tensor:
        """Return L*, a* and b* of pixels: there, what is near looks alike."""
        value = pixels.float() / 255
        linear = torch.where(value <= _DARK, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
        xyz = linear @ self._xyz.T
        root = torch.where(xyz > 216 / 24389, xyz.pow(1 / 3), (24389 / 27 * xyz + 16) / 116)
        return root @ self._lab.T
