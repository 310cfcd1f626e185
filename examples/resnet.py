"""
ResNet-18, each of its tensors named as torchvision names it, so that its weights fit.

The network of He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2015.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

__all__ = ["ResNet18"]

#: Channels of the first layer and of the four stages behind it.
_WIDTHS = (64, 64, 128, 256, 512)


class _Block(nn.Module):
    """Two convolutions and a way past them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = nn.Sequential()
        if before != after:
            short = nn.Conv2d(before, after, 1, stride, bias=False)
            self.downsample = nn.Sequential(short, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y))
        return (y + self.downsample(x)).relu()  # type: ignore[no-any-return]


class ResNet18(nn.Module):
    """
    A network that says what is in a picture.

    Args:
        classes: How many things it can tell apart.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, _WIDTHS[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(_WIDTHS[0])
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        for number, (before, after) in enumerate(pairwise(_WIDTHS), 1):
            # Each stage but the first halves the picture.
            first = _Block(before, after, stride=1 if number == 1 else 2)
            self.add_module(f"layer{number}", nn.Sequential(first, _Block(after, after, 1)))
        self.fc = nn.Linear(_WIDTHS[-1], classes)

    def forward(self, pictures: Tensor) -> Tensor:
        """
        Score every class.

        Args:
            pictures: Normalized, of shape (pictures, 3, height, width).

        Returns:
            Scores of shape (pictures, classes), before any softmax.
        """
        x = self.maxpool(self.bn1(self.conv1(pictures)).relu())
        for number in range(1, len(_WIDTHS)):
            x = self.get_submodule(f"layer{number}")(x)
        return self.fc(torch.flatten(x.mean((2, 3)), 1))  # type: ignore[no-any-return]
