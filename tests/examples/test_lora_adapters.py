"""The example whose batches have one adapter."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.runtime import registry
from celery_batch.worker.executor.loader import load_models
from examples import lora_adapters
from examples.lora_adapters import ADAPTERS, AdaptedClassifier
from tests.conftest import ROOT

torch = pytest.importorskip("torch")

CELERY = str(Path(sys.executable).with_name("celery"))
TEXTS = [f"{word} shines over the {place}" for word in "abcdefgh" for place in ("sea", "farm", "")]

#: The client: sends texts for both adapters and one more, and says what it has imported for that.
ASK = f"""
import json, sys
from examples.lora_adapters import classify, main
texts = {TEXTS!r}
results = [classify.delay(text, name) for text in texts for name in ("tone", "topic")]
unknown = classify.delay("a star", "none")
answers = [result.get(timeout=60) for result in results]
sizes = [result.batch_info.size for result in results]
error = repr(unknown.get(timeout=60, propagate=False))
heavy = [name for name in ("numpy", "torch") if name in sys.modules]
print(json.dumps([answers, sizes, main("tone", *texts), error, heavy]))
"""


def expected(adapter: str) -> list[str]:
    """Return the label of each text alone."""
    model = AdaptedClassifier()
    model.load("cpu")
    return [model.predict([text], adapter)[0] for text in TEXTS]


def test_a_worker_labels_texts_as_the_model_does(broker, in_python, tmp_path):
    """With batches of one adapter each text has the label that it has alone."""
    urls = {"CELERY_BROKER_URL": broker, "CELERY_RESULT_BACKEND": broker}
    command = [CELERY, "-A", "examples.lora_adapters", "worker", "--concurrency=1", "-l", "INFO"]
    env = {**os.environ, **urls, "PYTHONPATH": str(ROOT)}
    with ManagedProcess(command, tmp_path / "log", env=env) as worker:
        wait_until(
            lambda: "" if "ready." in worker.log.read_text() else "not ready",
            [worker],
            what="worker",
            timeout=120,
        )
        answer = in_python(ASK, **urls).splitlines()[-1]
    labels, sizes, chunk, error, heavy = json.loads(answer)

    assert expected("tone") == labels[::2] == chunk
    assert expected("topic") == labels[1::2]
    assert max(sizes) > 1
    assert "there is no adapter 'none'" in error
    assert [] == heavy


def test_each_adapter_is_warmed_up(monkeypatch):
    """With a call of its own, as requests will have."""
    monkeypatch.setattr(lora_adapters.app.conf, "task_always_eager", True)
    load_models(lora_adapters.app, ["classify"])
    found = lora_adapters.main("topic", *TEXTS)
    registry.unload_all()

    assert expected("topic") == found
    assert set(found) <= set(ADAPTERS["topic"])
