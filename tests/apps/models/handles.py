"""A handle whose requests say what it shall do, for the tests of ``celery batch serve``."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from celery_batch.serve.handle import Handle


class Trial(Handle):
    """Answers with what it has seen; misbehaves in each step that a request names."""

    def __init__(self, gpu):
        super().__init__(gpu)
        self.folder = Path(os.environ["TRIAL_FOLDER"])
        if (self.folder / "broken").exists():
            raise RuntimeError("the weights are broken")

    def preprocess(self, data):
        """Refuse a request that says so."""
        _misbehave(data["task_info"], "preprocess")
        return data

    def forward(self, batch):
        """Note how many came together."""
        for data in batch:
            _misbehave(data["task_info"], "forward")
            self._wait(data["task_info"])
        for data in batch:
            data["task_info"]["result"] = {"size": len(batch), "pid": os.getpid()}
        return batch

    def postprocess(self, data):
        """Give the envelope back."""
        _misbehave(data["task_info"], "postprocess")
        return data

    def _wait(self, info):
        """Hold the model until a file is there; die the first time."""
        hold, die = info.get("hold"), info.get("die")
        if hold:
            (self.folder / f"{hold}.held").touch()
        while hold and not (self.folder / hold).exists():
            time.sleep(0.01)
        if die and not (self.folder / die).exists():
            (self.folder / die).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def _misbehave(info, step):
    if info.get("raise") == step:
        raise ValueError(f"{step} does not like {info['name']}")
    if info.get("crash") == step:
        raise RuntimeError("a secret")
