"""easy-serve's own handles, and the ends of ``celery batch serve``."""

from __future__ import annotations

import signal

import pytest

from celery_batch.runtime import devices
from celery_batch.serve.app import LARGEST_BODY

HANDLE = """
import os
from celery_batch.serve.handle import BaseHandle, registry

@registry.reg()
class Plain(BaseHandle):
    def __init__(self, gpu):
        print("no warning")
        self.place = [int(gpu), os.environ["CUDA_VISIBLE_DEVICES"]]

    def preprocess(self, data):
        data["task_info"]["number"] = int(data["task_info"].pop("text"))
        return data

    def forward(self, data):
        data["task_info"]["result"] = data["task_info"].pop("number") * 2
        return data

    def postprocess(self, data):
        data["task_info"]["place"] = self.place
        return data

    def __call__(self, data):
        return self.postprocess(self.forward(self.preprocess(data)))
"""


def test_a_handle_of_easy_serve_works_unchanged_and_nothing_outlives_a_kill(
    served, tmp_path, broker
):
    """Its class is found beside the configuration, each process sees its GPU; SIGKILL ends all."""
    (tmp_path / "handle.py").write_text(HANDLE)
    config = f'GPUs: "0,1"\nProcessPerGPU: 1\nHandle: Plain\nBroker: {broker}\n'

    serving = served(config).ready()
    asked = [serving.asking({"text": str(number)}) for number in range(16)]
    answers = [each.result()[1]["task_info"] for each in asked]
    refused = serving.post({"text": "many"})
    family = serving.family()
    family[0].send_signal(signal.SIGKILL)

    assert [2 * number for number in range(16)] == [answer["result"] for answer in answers]
    assert {(0, "0"), (0, "1")} >= {tuple(answer["place"]) for answer in answers}
    assert (422, {"error", "task_id"}) == (refused[0], set(refused[1]))
    assert "Warning: Plain takes one request at a time" in serving.said
    assert "no warning" not in serving.said
    assert f"Plain is ready on {devices.shown(['cuda:0', 'cuda:1'])}: 2 workers" in serving.said
    for process in family:
        process.wait(60)


def test_a_handle_that_cannot_be_loaded_is_a_clear_error(served, broker):
    """The command ends, and says in one line which class was looked for where, and no more."""
    serving = served(f"GPUs: cpu\nHandle: tests.apps.models.handles:Trail\nBroker: {broker}\n")
    serving.child.wait(90)

    assert 1 == serving.child.exit_code
    error = serving.said[serving.said.index("Error: ") :]
    assert "has no class Trail; did you mean Trial?" in error
    assert "restarted" not in serving.said
    assert 1 == len(error.strip().splitlines()), error


@pytest.mark.thorough("a served model that hangs, and a large picture")
def test_a_model_that_hangs_is_broken_off(served, tmp_path, broker):
    """Its request gets an error in time, and later ones are served."""
    serving = served(
        f"GPUs: cpu\nHandle: tests.apps.models.handles:Trial\nBroker: {broker}\nTimeLimit: 5\n"
        f"Env: {{TRIAL_FOLDER: {tmp_path}}}\n"
    ).ready()
    status, answer = serving.post({"name": "endless", "hold": "for ever"})

    assert (504, "DeadlineExceeded") == (status, answer["error"]["type"])
    serving.until(lambda: "" if serving.post({"name": "next"})[0] == 200 else "not yet")


@pytest.mark.thorough("a served model that hangs, and a large picture")
def test_a_picture_of_many_megabytes_comes_through(served, tmp_path, broker):
    """What the web server takes, the broker and the worker take, too."""
    serving = served(
        f"GPUs: cpu\nHandle: tests.apps.models.handles:Trial\nBroker: {broker}\n"
        f"Env: {{TRIAL_FOLDER: {tmp_path}}}\n"
    ).ready()
    picture = "x" * (LARGEST_BODY - 100)
    status, answer = serving.post({"name": "large", "img": picture})

    assert 200 == status
    assert picture == answer["task_info"]["img"]
