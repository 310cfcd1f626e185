"""The shipped configurations, served by the command itself, with clients of their own."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from dataclasses import replace

import httpx
import psutil
import pytest

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import find_redis_server
from celery_batch.serve.app import CONFIG
from celery_batch.serve.config import ServeConfig, read_config
from celery_batch.serve.handle import Handle
from celery_batch.serve.handle_model import find_handle
from examples.serving.client import post_many
from tests.apps.models.onnx_files import BLUE_CLASS, RED_CLASS, picture, resnet18
from tests.conftest import ROOT, need
from tests.services.servers.nginx import Nginx, find_nginx
from tests.services.servers.ports import quiet_port
from tests.services.setup import CELERY

CONFIGS = ROOT / "examples" / "serving" / "configs"
IN_FLIGHT = 8


class Served:
    """A configuration that is served, and a second web server for its workers."""

    def __init__(self, folder):
        """Start both, and return when both answer."""
        model = resnet18(folder / "resnet18.onnx")
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "RESNET18_ONNX": str(model)}
        self.folder, self.port, self.other_port = folder, quiet_port(), quiet_port()
        self.url = f"http://127.0.0.1:{self.port}/predict"
        config = str(CONFIGS / "imagenet_resnet18.yaml")
        options = ["-c", config, "-p", str(self.port), "--dir", str(folder / "run")]
        self.command = ManagedProcess(
            [CELERY, "batch", "serve", *options], folder / "serve.log", env=self.env
        )
        try:
            self._wait(lambda: self.command.log.read_text().count(" is ready on "), self.command)
            self.other = self._second_server()
            self._wait(lambda: _answers(self.other_port), self.other)
        except BaseException:
            self.command.stop(30)
            raise

    def close(self):
        """End everything."""
        self.other.stop()
        self.command.stop(30)

    def doomed(self):
        """Return the second web server's own process; one that was killed is started again."""
        if self.other.exit_code is not None:
            self.other = self._second_server()
            self._wait(lambda: _answers(self.other_port), self.other)
        (process,) = psutil.Process(self.other.pid).children()
        return process

    def _second_server(self):
        config = ServeConfig.from_json((self.folder / "run" / "serve.json").read_text())
        path = self.folder / "second.json"
        path.write_text(replace(config, port=self.other_port).to_json())
        command = [sys.executable, "-m", "celery_batch.serve.web"]
        return ManagedProcess(
            command, self.folder / "second.log", env={**self.env, CONFIG: str(path)}
        )

    def _wait(self, ready, child):
        wait_until(lambda: "" if ready() else "no word", [child], what=child.name, timeout=90)


def _answers(port):
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).is_success
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Serve the classifier's configuration, as shipped, with a small file."""
    need(find_redis_server)
    served = Served(tmp_path_factory.mktemp("served"))
    yield served
    served.close()


def predict(served, text):
    """Post one picture."""
    answer = httpx.post(served.url, json={"img": text}, timeout=60, trust_env=False)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("name", ["imagenet_resnet18", "coco_yolov3"])
def test_shipped_configurations_name_their_handles(name):
    """Each configuration can be read, and its handle takes lists."""
    config = read_config(CONFIGS / f"{name}.yaml")

    assert 9876 == config.port
    assert issubclass(find_handle(config.handle), Handle)


def test_pictures_are_classified(served):
    """A picture in base64 comes back as its class; what is none is refused, and says why."""
    answers = [
        predict(served, base64.b64encode(picture(colour, (640, 480), "JPEG")).decode())
        for colour in ("red", "blue")
    ]
    status, refusal = predict(served, "no picture")

    assert [(200, [RED_CLASS]), (200, [BLUE_CLASS])] == [
        (status, answer["task_info"]["result"]) for status, answer in answers
    ]
    assert 422 == status
    assert "img: no base64" in refusal["error"]["message"]


def test_sample_client_is_answered(served, tmp_path):
    """The client's posts are all answered, and it says so by its exit code."""
    file = tmp_path / "red.jpg"
    file.write_bytes(picture("red", (640, 480), "JPEG"))
    command = [sys.executable, "-m", "examples.serving.client", str(file), "--url", served.url]
    done = subprocess.run(
        [*command, "--count=40"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "40 answered, 0 failed" in done.stdout


def test_killed_web_server_costs_only_what_was_in_flight(served, tmp_path):
    """Behind nginx, a web server that is killed under load fails what it was answering alone."""
    need(find_nginx)
    nginx = Nginx(tmp_path, [served.other_port, served.port])
    doomed = served.doomed()
    answered = []

    def count():
        answered.append(1)
        if len(answered) == 40:
            doomed.kill()

    tally = asyncio.run(
        post_many(
            f"http://127.0.0.1:{nginx.port}/predict",
            picture("red", (64, 48), "JPEG"),
            count=160,
            in_flight=IN_FLIGHT,
            on_answer=count,
        )
    )
    nginx.child.stop()

    # What comes between the signal and the end of its sockets is in flight on it, too.
    assert tally.errors.total() <= 2 * IN_FLIGHT
    assert {"502"} >= {error[:3] for error in tally.errors}
    assert 160 == len(tally.latencies) + tally.errors.total()
