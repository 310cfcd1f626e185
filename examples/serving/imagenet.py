"""What is in the picture: a ResNet-18 that has learnt ImageNet's thousand classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from celery_batch.serve.handle import Handle, registry
from examples.serving.onnx_model import OnnxModel
from examples.serving.pictures import centre_crop, channels_first, decode

__all__ = ["ImagenetResnet18Handle"]

_SIDE, _EDGE = 224, 256
_MOST_LIKELY = 5

# Of ImageNet's pictures: https://github.com/onnx/models, archive/vision/classification/resnet.
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]


@registry.reg()
class ImagenetResnet18Handle(Handle):
    """
    Classifies ``{"img": base64}``: ``result`` is the class, ``top5`` the likeliest five.

    The file is the one that ``RESNET18_ONNX`` names: ``resnet18-v1-7.onnx`` or
    ``resnet18-v2-7.onnx`` of the ONNX model zoo, or any other with one input of this
    form and one score for each class.
    """

    def __init__(self, gpu: str) -> None:
        super().__init__(gpu)
        path = Path(os.environ.get("RESNET18_ONNX", "models/resnet18-v1-7.onnx"))
        self._model = OnnxModel(path, gpu, [np.zeros((3, _SIDE, _SIDE), np.float32)])

    def preprocess(self, data: dict[str, Any]) -> dict[str, Any]:
        """Put the network's view of the picture in its place."""
        square = centre_crop(decode(data["task_info"].get("img")), edge=_EDGE, side=_SIDE)
        data["task_info"]["img"] = (channels_first(square) - _MEAN) / _DEVIATION
        return data

    def forward(self, batch: list[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Score the classes for all pictures at once."""
        answers = self._model.run([[data["task_info"]["img"]] for data in batch])
        for data, (outputs, place) in zip(batch, answers, strict=True):
            data["task_info"]["result"] = outputs[0][place]
            del data["task_info"]["img"]
        return batch

    def postprocess(self, data: dict[str, Any]) -> dict[str, Any]:
        """Put the class in place of the scores."""
        likely = _probabilities(data["task_info"]["result"])
        best = np.argsort(-likely, kind="stable")[:_MOST_LIKELY]
        data["task_info"]["result"] = [int(best[0])]
        data["task_info"]["top5"] = [
            {"class": int(each), "score": float(likely[each])} for each in best
        ]
        return data


def _probabilities(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(scores - scores.max())
    return np.asarray(powers / powers.sum())
