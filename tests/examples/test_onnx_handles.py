"""The ONNX handles on small files with the inputs and outputs of the published ones."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from celery_batch.errors import ConfigurationError
from celery_batch.serve.handle import NO_GPU
from examples.serving.coco import CoCoYOLOV3Handle
from examples.serving.imagenet import ImagenetResnet18Handle
from examples.serving.onnx_model import OnnxModel
from tests.apps.models.onnx_files import BLUE_CLASS, RED_CLASS, picture, resnet18, yolov3

#: What the small detector finds in a red and in a blue picture, dimmed by grey bars beside them.
RED = {"score": 0.788, "class": "person", "box": [0, 0, 480, 320]}
BLUE = {"score": 0.701, "class": "bicycle", "box": [0, 50, 75, 100]}


@pytest.fixture
def classifier(tmp_path, monkeypatch):
    """Make a classifier on a file of a test's choice."""

    def make(**options):
        monkeypatch.setenv("RESNET18_ONNX", str(resnet18(tmp_path / "resnet.onnx", **options)))
        return ImagenetResnet18Handle(NO_GPU)

    return make


@pytest.fixture
def detector(tmp_path, monkeypatch):
    """Make a detector on a file of a test's choice."""

    def make(**options):
        monkeypatch.setenv("YOLOV3_ONNX", str(yolov3(tmp_path / "yolo.onnx", **options)))
        return CoCoYOLOV3Handle(NO_GPU)

    return make


def envelope(colour, size=(640, 480)):
    """Return the envelope of a picture of one colour."""
    text = base64.b64encode(picture(colour, size)).decode()
    return {"task_id": colour, "task_info": {"img": text}}


def answered(handle, envelopes):
    """Serve envelopes as one batch."""
    return [handle.postprocess(each) for each in handle.forward(prepared(handle, envelopes))]


def prepared(handle, envelopes):
    """Get envelopes ready for the model."""
    return [handle.preprocess(each) for each in envelopes]


def calls(handle, monkeypatch):
    """Return a list that is told the size of each call of the handle's model."""
    sizes = []
    call = handle._model._call
    monkeypatch.setattr(
        handle._model,
        "_call",
        lambda rows, *options: sizes.append(len(rows)) or call(rows, *options),
    )
    return sizes


def found(handle, envelopes):
    """Return what a detector has found, its scores rounded."""
    results = [each["task_info"]["result"] for each in answered(handle, envelopes)]
    return [
        [{**thing, "score": round(thing["score"], 3)} for thing in things] for (things,) in results
    ]


@pytest.mark.parametrize("output", ["resnetv15_dense0_fwd", "resnetv22_dense0_fwd"])
def test_classifier_names_the_class(classifier, output):
    """The answer is the likeliest class and the five likeliest, in JSON, without the picture."""
    answer = classifier(output=output)(envelope("red"))
    info = json.loads(json.dumps(answer))["task_info"]
    scores = [each["score"] for each in info["top5"]]

    assert ({"result", "top5"}, [RED_CLASS]) == (set(info), info["result"])
    assert [RED_CLASS, 0, 1, 2, 3] == [each["class"] for each in info["top5"]]
    assert sorted(scores, reverse=True) == scores
    assert pytest.approx(1) == sum(scores)


@pytest.mark.parametrize(("batch", "sizes"), [("N", [3]), (1, [1, 1, 1])], ids=["free", "fixed"])
def test_classifier_runs_one_batch_where_it_can(classifier, monkeypatch, batch, sizes):
    """Pictures go through together, one by one if the file's batch size is fixed at one."""
    handle = classifier(batch=batch)
    seen = calls(handle, monkeypatch)
    answers = answered(handle, [envelope("red"), envelope("black", (30, 90)), envelope("blue")])

    assert [[RED_CLASS], [0], [BLUE_CLASS]] == [each["task_info"]["result"] for each in answers]
    assert sizes == seen


@pytest.mark.parametrize(("one_only", "sizes"), [(False, [3]), (True, [1, 1, 1])])
def test_detector_finds_things(detector, monkeypatch, one_only, sizes):
    """Each picture has its own things, in its own pixels, whether or not the file takes many."""
    handle = detector(one_only=one_only)
    seen = calls(handle, monkeypatch)
    things = found(handle, [envelope("red"), envelope("black"), envelope("blue", (100, 75))])

    assert [[RED], [], [BLUE]] == things
    assert sizes == seen


@pytest.mark.parametrize(
    ("make", "options"), [("classifier", {"batch": 1}), ("detector", {"one_only": True})]
)
def test_failed_forward_can_be_tried_again(request, make, options):
    """A batch that fails is left as it was, so that its halves can be tried."""
    handle = request.getfixturevalue(make)(**options)
    handle._model.takes_batches = True
    batch = prepared(handle, [envelope("red"), envelope("red")])
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT|Squeeze"):
        handle.forward(batch)
    answers = [handle.postprocess(handle.forward([each])[0]) for each in batch]

    assert ["result"] * 2 == [next(iter(each["task_info"])) for each in answers]


@pytest.mark.parametrize("make", ["classifier", "detector"])
@pytest.mark.parametrize("info", [{}, {"img": 5}, {"img": "cGxlYXNl"}], ids=["none", "5", "text"])
def test_bad_picture_is_a_value_error(request, make, info):
    """A request without a readable picture fails in preprocess, as a fault of the request."""
    handle = request.getfixturevalue(make)()

    with pytest.raises(ValueError, match=r"^img: "):
        handle.preprocess({"task_id": "x", "task_info": info})


def test_missing_file_says_so(monkeypatch, tmp_path):
    """A file that is not there fails the load, by its name."""
    monkeypatch.setenv("RESNET18_ONNX", str(tmp_path / "absent.onnx"))

    with pytest.raises(ConfigurationError, match=r"no such ONNX file: .*absent\.onnx"):
        ImagenetResnet18Handle(NO_GPU)


def test_foreign_file_says_so(monkeypatch, tmp_path):
    """A file with other inputs fails the load, with what it has."""
    monkeypatch.setenv("YOLOV3_ONNX", str(resnet18(tmp_path / "resnet.onnx")))

    with pytest.raises(ConfigurationError, match=r"2 inputs wanted, has \['data'\]"):
        CoCoYOLOV3Handle(NO_GPU)


def test_processor_in_place_of_a_gpu_is_told(caplog, monkeypatch, tmp_path):
    """A runtime without CUDA serves on the processor, and warns where a GPU was meant."""
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    example = [np.zeros((3, 224, 224), np.float32)]
    OnnxModel(resnet18(tmp_path / "x.onnx"), NO_GPU, example)
    quiet = caplog.text
    OnnxModel(tmp_path / "x.onnx", "0", example)

    assert "" == quiet
    assert "no CUDA in ONNX Runtime" in caplog.text


@pytest.mark.parametrize(("told", "threads"), [(None, 0), ("3", 3)], ids=["untold", "three"])
def test_threads_are_as_many_as_the_process_is_told(monkeypatch, tmp_path, told, threads):
    """The runtime's own threads heed OMP_NUM_THREADS, as all other libraries do."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if told:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    model = OnnxModel(resnet18(tmp_path / "x.onnx"), NO_GPU, [np.zeros((3, 224, 224), np.float32)])

    assert threads == model._session.get_session_options().intra_op_num_threads
