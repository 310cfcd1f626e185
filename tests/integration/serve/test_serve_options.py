"""``celery batch serve module:Class``: no file, several web processes, reloading."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import psutil

from tests.services.setup import ROOT

HANDLE = """
from celery_batch.serve.handle import Handle
from words import answer

class Parrot(Handle):
    def forward(self, batch):
        return [answer for _ in batch]
"""


def test_several_web_processes_share_a_port_and_their_counts(served, tmp_path):
    """A class is served without a file; with one web process away requests are answered."""
    (tmp_path / "parrot.py").write_text(HANDLE)
    (tmp_path / "words.py").write_text("answer = 'hello'")
    options = ("--gpus", "cpu", "--workers", "2")
    serving = served("", "parrot:Parrot", *options, PYTHONPATH=f"{ROOT}:{tmp_path}").ready()
    answers = []
    for name in ("web-0", "web-1"):
        serving.until(lambda: "" if _listen(serving) else "not both listen")  # also the restarted
        with ThreadPoolExecutor(8) as clients:
            answers += clients.map(lambda _: serving.post({}), range(20))
        serving.kill(name)
        answers += [serving.post({}) for _ in range(5)]
    counted = re.findall(r'requests_total{status="200"} (\d+)', serving.text("/metrics"))

    assert [(200, "hello")] * 50 == answers
    assert ["50"] == counted


def _listen(serving):
    """Return whether both web processes listen on the port."""
    processes = [psutil.Process(serving.pid(f"web-{number}")) for number in range(2)]
    return all(
        serving.port in {each.laddr.port for each in process.net_connections("tcp")}
        for process in processes
    )


def test_the_workers_restart_when_the_handles_files_change(served, tmp_path):
    """An error of the load is printed, and a corrected file is served; also an imported one."""
    (tmp_path / "parrot.py").write_text(HANDLE)
    words = tmp_path / "words.py"
    words.write_text("answer = 'hello'")
    options = ("--gpus", "cpu", "--reload")
    serving = served("", "parrot:Parrot", *options, PYTHONPATH=f"{ROOT}:{tmp_path}").ready()
    before = serving.post({})
    words.write_text("answer = 'hello' +")
    serving.until(lambda: "" if "SyntaxError" in serving.said else "no error is printed")
    words.write_text("answer = 'good morning'")
    serving.until(lambda: "" if "is ready again" in serving.said else "it is not ready again")

    assert (200, "hello") == before
    assert (200, "good morning") == serving.post({})
    assert "words.py has changed: the workers have been restarted" in serving.said
