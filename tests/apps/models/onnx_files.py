"""Small ONNX files with the inputs and outputs of published ones, for tests to look through."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, checker, helper, numpy_helper
from PIL import Image

__all__ = ["BLUE_CLASS", "RED_CLASS", "picture", "resnet18", "yolov3"]

#: The class that the classifier sees in what is red, or blue.
RED_CLASS, BLUE_CLASS = 6, 950

_OPSET = 17
_IR = 8


def picture(colour: str, size: tuple[int, int] = (64, 48), kind: str = "PNG") -> bytes:
    """Return the file of a picture of one colour."""
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return file.getvalue()


def resnet18(path: Path, *, output: str = "resnetv15_dense0_fwd", batch: int | str = "N") -> Path:
    """Write a classifier that tells colours apart: `RED_CLASS`, `BLUE_CLASS`, else class 0."""
    weights = np.zeros((3, 1000), np.float32)
    weights[0, RED_CLASS] = weights[2, BLUE_CLASS] = 10
    nodes = [
        helper.make_node("GlobalAveragePool", ["data"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["colours"]),
        helper.make_node("MatMul", ["colours", "weights"], [output]),
    ]
    return _write(
        path,
        nodes,
        inputs=[_floats("data", batch, 3, 224, 224)],
        outputs=[_floats(output, batch, 1000)],
        weights={"weights": weights},
    )


def yolov3(path: Path, *, one_only: bool = False) -> Path:
    """
    Write a detector that has three places to look at, and sees the picture's mean colour there.

    The left half, the right half and the right half moved by a hair: a person where there
    is red, a bicycle where there is blue, and of two boxes over each other only the better.

    Args:
        path: The file.
        one_only: Whether it fails on more than one picture, as the published file does.
    """
    halves = [[0, 0, 1, 0.5], [0, 0.5, 1, 1], [0, 0.501, 1, 1]]
    seen = np.zeros((3, 80, 3), np.float32)
    seen[0, 0] = [0.9, 0, 0]
    seen[2, 1] = [0, 0.8, 0.7]
    weights = {
        "halves": np.float32([halves]),
        "seen": seen.reshape(3, 240),
        "form": np.int64([-1, 80, 3]),
        "middle": np.int64([1]),
        "most": np.int64([10]),
        "overlap": np.float32([0.5]),
        "least": np.float32([0.1]),
    }
    boxes, scores, indices = (
        "yolonms_layer_1/ExpandDims_1:0",
        "yolonms_layer_1/ExpandDims_3:0",
        "yolonms_layer_1/concat_2:0",
    )
    if one_only:
        weights["first"] = np.int64([0])
    squeezed = [
        helper.make_node("Squeeze", ["image_shape", "first"], ["flat"]),
        helper.make_node("Unsqueeze", ["flat", "first"], ["size"]),
    ]
    nodes = [
        *(squeezed if one_only else [helper.make_node("Identity", ["image_shape"], ["size"])]),
        helper.make_node("Concat", ["size", "size"], ["corners"], axis=1),
        helper.make_node("Unsqueeze", ["corners", "middle"], ["corner_rows"]),
        helper.make_node("Mul", ["corner_rows", "halves"], [boxes]),
        helper.make_node("GlobalAveragePool", ["input_1"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["colours"]),
        helper.make_node("MatMul", ["colours", "seen"], ["flat_scores"]),
        helper.make_node("Reshape", ["flat_scores", "form"], [scores]),
        helper.make_node(
            "NonMaxSuppression", [boxes, scores, "most", "overlap", "least"], ["chosen"]
        ),
        helper.make_node("Cast", ["chosen"], [indices], to=TensorProto.INT32),
    ]
    return _write(
        path,
        nodes,
        inputs=[_floats("input_1", "N", 3, "H", "W"), _floats("image_shape", "M", 2)],
        outputs=[
            _floats(boxes, "N", 3, 4),
            _floats(scores, "N", 80, 3),
            helper.make_tensor_value_info(indices, TensorProto.INT32, ["found", 3]),
        ],
        weights=weights,
    )


def _floats(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _write(path, nodes, *, inputs, outputs, weights) -> Path:
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, constants)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR
    )
    checker.check_model(model)
    onnx.save(model, path)
    return path
