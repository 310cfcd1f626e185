"""Where things are in the picture: a YOLOv3 that has learnt COCO's eighty classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from celery_batch.serve.handle import Handle, registry
from examples.serving.onnx_model import OnnxModel, Outputs
from examples.serving.pictures import channels_first, decode, letterbox

__all__ = ["CLASSES", "CoCoYOLOV3Handle"]

_SIDE = 416

#: What the numbers of the network's classes stand for.
CLASSES = tuple(Path(__file__).with_name("coco_classes.txt").read_text().splitlines())


@registry.reg()
class CoCoYOLOV3Handle(Handle):
    """
    Finds things in ``{"img": base64}``: ``result`` has a list of them, in a list.

    Each is ``{"class": name, "score": 0 to 1, "box": [top, left, bottom, right]}``, in
    pixels of the picture that was sent, the likeliest first.  The file is the one that
    ``YOLOV3_ONNX`` names: ``yolov3-10.onnx`` of the ONNX model zoo, or its tiny sister.
    """

    #: What scores less is left out.
    score_threshold = 0.5

    def __init__(self, gpu: str) -> None:
        super().__init__(gpu)
        path = Path(os.environ.get("YOLOV3_ONNX", "models/yolov3-10.onnx"))
        blank = np.zeros((3, _SIDE, _SIDE), np.float32)
        self._model = OnnxModel(path, gpu, [blank, np.array([_SIDE, _SIDE], np.float32)])

    def preprocess(self, data: dict[str, Any]) -> dict[str, Any]:
        """Put the network's view of the picture in its place, and its size beside it."""
        picture = decode(data["task_info"].get("img"))
        data["task_info"]["img"] = channels_first(letterbox(picture, _SIDE))
        data["task_info"]["img_shape"] = np.array(picture.size[::-1], np.float32)
        return data

    def forward(self, batch: list[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Find what is in all pictures, at once if the file can do that."""
        infos = [data["task_info"] for data in batch]
        answers = self._model.run([[info["img"], info["img_shape"]] for info in infos])
        for info, (outputs, place) in zip(infos, answers, strict=True):
            info["result"] = _of_one(outputs, place)
            del info["img"], info["img_shape"]
        return batch

    def postprocess(self, data: dict[str, Any]) -> dict[str, Any]:
        """Put what was found in place of the network's arrays."""
        boxes, scores, chosen = data["task_info"]["result"]
        found = [
            {"score": float(scores[kind, box]), "class": CLASSES[kind], "box": boxes[box].tolist()}
            for kind, box in chosen.tolist()
            if scores[kind, box] >= self.score_threshold
        ]
        found.sort(key=lambda thing: -thing["score"])
        data["task_info"]["result"] = [found]
        return data


def _of_one(outputs: Outputs, place: int) -> Outputs:
    """Return one picture's boxes, their scores by class, and the (class, box) that count."""
    boxes, scores, indices = outputs
    # Some of the published files have one more axis here, and -1 where there is nothing.
    rows = indices.reshape(-1, 3)
    return boxes[place], scores[place], rows[rows[:, 0] == place, 1:]
