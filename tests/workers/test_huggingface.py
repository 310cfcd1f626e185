"""A Hugging Face model in a real worker, asked by a client that has neither it nor torch."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest
from celery import Celery

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from tests.apps.models.tiny_transformer import POSITIONS, WORDS, save_classifier

#: Of many lengths; one has no words, and one more than the model reads.
DRAW = random.Random(7)  # noqa: S311 (to be repeated, not to be secret)
TEXTS = [" ".join(DRAW.choices([*WORDS, "films", "odd"], k=1 + n % 25)) for n in range(60)]
TEXTS += ["", "good " * 2 * POSITIONS]

#: The client: asks for everything at once, and says what it has imported for that.
ASK = f"""
import json, sys
from workers.huggingface import classify
wrong, *results = classify.delay_many({[None, *TEXTS]!r})
answers = [result.get(timeout=60) for result in results]
heavy = [name for name in ("numpy", "torch", "transformers") if name in sys.modules]
sizes = [result.batch_info.size for result in results]
print(json.dumps([answers, sizes, repr(wrong.get(timeout=60, propagate=False)), heavy]))
"""

CELERY = str(Path(sys.executable).with_name("celery"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with a tokenizer and a model that has three labels."""
    if os.environ.get("CI") != "true":  # there it has to be installed
        pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("classifier")
    save_classifier(path)
    return path


def one_by_one(folder: Path, texts: list[str]) -> list[tuple[str, float]]:
    """Return label and score of each text as transformers gives them, without batches."""
    import torch  # noqa: PLC0415 (each takes seconds, which every test process would wait)
    import transformers  # noqa: PLC0415

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    answers = []
    for text in texts:
        inputs = tokenizer(text, truncation=True, return_tensors="pt")
        with torch.no_grad():
            scores = model(**inputs).logits[0].softmax(0)
        best = int(scores.argmax())
        answers.append((model.config.id2label[best], float(scores[best])))
    return answers


def test_worker_answers_in_batches_as_the_model_does(folder, broker, in_python, tmp_path):
    """Texts of any lengths share batches, each has the model's own answer, and None an error."""
    urls = {"CELERY_BROKER_URL": broker, "CELERY_RESULT_BACKEND": broker}
    env = {**os.environ, **urls, "HF_MODEL": str(folder)}
    command = [CELERY, "-A", "workers", "worker", "--concurrency=1"]
    with (
        ManagedProcess(command, tmp_path / "worker.log", env=env) as worker,
        Celery(broker=broker, set_as_current=False) as client,
    ):
        wait_until(
            lambda: "" if client.control.ping(timeout=0.5, limit=1) else "no answer to a ping",
            [worker],
            what="worker",
            timeout=90,
        )
        answers, sizes, wrong, heavy = json.loads(in_python(ASK, **urls))
    expected = one_by_one(folder, TEXTS)

    assert [label for label, _ in expected] == [answer["label"] for answer in answers]
    assert [answer["score"] for answer in answers] == pytest.approx(
        [score for _, score in expected], abs=1e-4
    )
    assert {"negative", "neutral", "positive"} == {answer["label"] for answer in answers}
    assert max(sizes) > 8
    assert wrong.startswith("ValueError")
    assert [] == heavy


def test_worker_without_a_folder_has_no_such_task(in_python):
    """Unless HF_MODEL is set, the worker's app neither imports the module nor has its task."""
    code = (
        "import sys; from workers import app; app.loader.import_default_modules();"
        "print('workers.infill' in app.tasks, 'workers.classify' in app.tasks,"
        " 'workers.huggingface' in sys.modules)"
    )

    assert "True False False" == in_python(code, HF_MODEL="")
    assert "True True True" == in_python(code, HF_MODEL="/no/such/folder")
