"""The networks that are measured on a GPU, with random weights; without one they are tiny."""

from __future__ import annotations

from typing import Any

from celery_batch.runtime.devices import discover

__all__ = ["DEVICE", "IS_TINY", "PIXELS", "TOKENS", "VOCABULARY", "convnet", "encoder"]

DEVICE = discover()[0]
IS_TINY = DEVICE == "cpu"

TOKENS, VOCABULARY = 256, 30_522
_LAYERS, _WIDTH, _HEADS = (2, 64, 4) if IS_TINY else (12, 768, 12)
_BLOCKS, _CHANNELS, PIXELS = ((1, 1), 4, 32) if IS_TINY else ((3, 4, 6, 3), 64, 224)


def encoder(nn: Any) -> Any:
    """Return an encoder of BERT-base's size: 12 layers of width 768."""

    class Network(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            shape = (_WIDTH, _HEADS, 4 * _WIDTH)
            options = {"dropout": 0.0, "activation": "gelu", "batch_first": True}
            layer = nn.TransformerEncoderLayer(*shape, **options)
            self.words = nn.Embedding(VOCABULARY, _WIDTH)
            self.places = nn.Embedding(TOKENS, _WIDTH)
            self.layers = nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)
            self.head = nn.Linear(_WIDTH, 2)

        def forward(self, ids: Any, mask: Any = None) -> Any:
            """Return two scores for each text, of which `mask` is true where it has a token."""
            states = self.words(ids) + self.places.weight[: ids.shape[1]]
            if mask is None:
                return self.head(self.layers(states).mean(1))
            states = self.layers(states, src_key_padding_mask=~mask)
            return self.head((states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True))

    return Network()


def convnet(nn: Any) -> Any:
    """Return a network of ResNet-50's size: 16 blocks, for 224 by 224 pixels."""

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, inner: int, width: int, stride: int) -> None:
            super().__init__()
            steps = [(inner, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
            self.steps = nn.ModuleList(_convolution(nn, *step) for step in steps)
            straight = stride == 1 and inner == 4 * width
            self.side = nn.Identity() if straight else _convolution(nn, inner, 4 * width, 1, stride)

        def forward(self, x: Any) -> Any:
            first, second, third = self.steps
            y = third(second(first(x).relu()).relu())
            return (y + self.side(x)).relu()

    layers: list[Any] = [_convolution(nn, 3, _CHANNELS, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inner = _CHANNELS
    for stage, blocks in enumerate(_BLOCKS):
        width = _CHANNELS << stage
        for block in range(blocks):
            layers.append(Block(inner, width, 2 if stage and not block else 1))
            inner = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000))


def _convolution(nn: Any, inner: int, outer: int, kernel: int, stride: int) -> Any:
    parts = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outer)
    return nn.Sequential(*parts)
