"""A network in an ONNX file, run on as many inputs at once as the file can take."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    RuntimeException,
)

from celery_batch.errors import ConfigurationError

__all__ = ["OnnxModel", "Outputs", "Row"]

logger = logging.getLogger(__name__)

#: One input of the model: an array for each of the file's inputs, without the batch's axis.
Row = Sequence[NDArray[np.float32]]
#: What one call of the model returned: an array for each of the file's outputs.
Outputs = Sequence[NDArray[Any]]

_CUDA = "CUDAExecutionProvider"
_FATAL_ONLY = 4


class OnnxModel:
    """
    An ONNX file, loaded and tried out.

    Its inputs and outputs are known by their order, so their names may be any.  Whether
    it takes batches is found by trying: published files declare a free batch size and
    fail on two (https://github.com/onnx/models/issues/678).

    Args:
        path: The file.
        gpu: The id of the GPU, among those that this process can see; below 0 for none.
        example: An input to try it with.

    Raises:
        ConfigurationError: There is no such file, or it wants other inputs.
    """

    def __init__(self, path: Path, gpu: str, example: Row) -> None:
        if not path.is_file():
            raise ConfigurationError(f"no such ONNX file: {path}")
        self._session = onnxruntime.InferenceSession(path, _options(), _providers(gpu))
        if int(gpu) >= 0 and _CUDA not in self._session.get_providers():
            logger.warning("no CUDA in ONNX Runtime: %s runs on the processor", path)
        self._inputs = [each.name for each in self._session.get_inputs()]
        self.outputs = [each.name for each in self._session.get_outputs()]
        if len(self._inputs) != len(example):
            raise ConfigurationError(f"{path}: {len(example)} inputs wanted, has {self._inputs}")
        self._call([example])
        self.takes_batches = self._can_do_two(example)

    def run(self, rows: Sequence[Row]) -> list[tuple[Outputs, int]]:
        """
        Run the model on all rows, in one call if it takes batches.

        Args:
            rows: The inputs, at least one, all of the same shapes.

        Returns:
            For each row what the call that it was in returned, and its place in that call.
        """
        if not self.takes_batches:
            return [(self._call([row]), 0) for row in rows]
        outputs = self._call(rows)
        return [(outputs, place) for place in range(len(rows))]

    def _call(self, rows: Sequence[Row], options: Any = None) -> Outputs:
        columns = map(np.stack, zip(*rows, strict=True))
        feed = dict(zip(self._inputs, columns, strict=True))
        outputs: Outputs = self._session.run(self.outputs, feed, options)
        return outputs

    def _can_do_two(self, example: Row) -> bool:
        options = onnxruntime.RunOptions()
        options.log_severity_level = _FATAL_ONLY  # to fail is an answer here
        try:
            return len(self._call([example, example], options)[0]) == 2  # noqa: PLR2004
        except (Fail, InvalidArgument, RuntimeException):
            return False


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    # The library has threads of its own for each process, as many as there are cores, unless told.
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    # Threads that spin while they wait take the cores from preprocessing.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _providers(gpu: str) -> list[Any]:
    if int(gpu) < 0 or _CUDA not in onnxruntime.get_available_providers():
        return ["CPUExecutionProvider"]
    return [(_CUDA, {"device_id": int(gpu)}), "CPUExecutionProvider"]
