"""The examples with fixed shapes: nothing is compiled or recorded after the warm-up."""

from __future__ import annotations

import json
import os
import random
import sys
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.runtime import registry
from celery_batch.runtime.registry import model_calls
from celery_batch.worker.executor.loader import load_models
from examples import cuda_graphs, sentence_embeddings
from examples.cuda_graphs import GraphClassifier
from examples.image_classifier import ImageClassifier
from examples.images_by_shape import Enlarger
from examples.sentence_embeddings import SentenceEncoder, tokenizer
from tests.conftest import ROOT

torch = pytest.importorskip("torch")

WORDS = ["star", "stars", "shine", "shines", "cow", "jumped", "wall", "zebra"]
CHANCE = random.Random(3)  # noqa: S311 (to be repeated)
TEXTS = [" ".join(CHANCE.choices(WORDS, k=1 + n % 30)) for n in range(60)]
CELERY = str(Path(sys.executable).with_name("celery"))

#: The client: sends all texts as tasks and as a chunk, and says what it has imported for that.
ASK = f"""
import json, sys
from examples.sentence_embeddings import embed, main
texts = {TEXTS!r}
results, chunk = embed.delay_many(texts), embed.delay_rows(texts)
answers = [[each.get(timeout=60) for each in results], chunk.get(timeout=60)]
answers = [[row.tolist() for row in rows] for rows in answers]
heavy = [name for name in ("numpy", "torch", "tokenizers") if name in sys.modules]
print(json.dumps([*answers, main("a star shines", "stars shine", "the cow jumped"), heavy]))
"""

#: The client of the images: as the program does, and once more with what is no image.
SEND = """
import json, os, sys
from pathlib import Path
from examples.images_by_shape import enlarge, main
folder = Path(os.environ["FOLDER"])
paths = sorted(folder.glob("*.png"))
main(*map(str, paths))
results = enlarge.delay_many([b"no image", *[path.read_bytes() for path in paths]])
error, *_ = [result.get(timeout=60, propagate=False) for result in results]
heavy = [name for name in ("numpy", "torch", "PIL") if name in sys.modules]
print(json.dumps([[each.batch_info.size for each in results[1:]], repr(error), heavy]))
"""


@pytest.fixture(autouse=True)
def in_place(monkeypatch):
    """Tasks run in this process, whose models are unloaded in the end."""
    for app in (cuda_graphs.app, sentence_embeddings.app):
        monkeypatch.setattr(app.conf, "task_always_eager", True)
    monkeypatch.delenv("RESNET_WEIGHTS", raising=False)
    torch.set_num_threads(1)
    yield
    registry.unload_all()


def picture(colour) -> bytes:
    """Return a picture's file."""
    file = BytesIO()
    Image.new("RGB", (64, 48), colour).save(file, "PNG")
    return file.getvalue()


def graphs_compiled() -> int:
    """Return how many graphs torch has compiled in this process."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.timeout(400)
def test_texts_meet_no_shape_that_is_not_compiled():
    """After the warm-up torch compiles nothing more, whatever texts come."""
    torch._dynamo.reset()
    before = graphs_compiled()
    load_models(sentence_embeddings.app, ["embed"])
    warmed_up = graphs_compiled() - before
    for rows in range(1, 24):
        texts = [" ".join(CHANCE.choices(WORDS, k=CHANCE.randint(1, 40))) for _ in range(rows)]
        assert rows == len(sentence_embeddings.embed.delay_rows(texts).get())

    assert 11 == warmed_up
    assert before + warmed_up == graphs_compiled()


@pytest.mark.parametrize("length", SentenceEncoder.batch_lengths)
def test_an_example_has_its_length_in_tokens(length):
    """Otherwise the warm-up would run other shapes than requests do."""
    assert length == SentenceEncoder.cost(SentenceEncoder().example(length))


def test_a_long_text_is_cut():
    """It is no longer than the longest of the lengths; an empty one is a token long."""
    assert SentenceEncoder.batch_lengths[-1] == len(tokenizer().encode("z " * 500))
    assert 1 == SentenceEncoder.cost("")


@pytest.mark.thorough("an example's embeddings from a worker")
def test_a_worker_embeds_texts_as_the_model_does(broker, in_python, tmp_path):
    """In batches by tokens each text has its own embedding; the client needs no torch."""
    urls = {"CELERY_BROKER_URL": broker, "CELERY_RESULT_BACKEND": broker}
    command = [CELERY, "-A", "examples.sentence_embeddings", "worker", "--concurrency=1"]
    env = {**os.environ, **urls, "PYTHONPATH": str(ROOT)}
    with ManagedProcess([*command, "-l", "INFO"], tmp_path / "log", env=env) as worker:
        wait_until(
            lambda: "" if "ready." in worker.log.read_text() else "not ready",
            [worker],
            what="worker",
            timeout=120,
        )
        one_by_one, chunk, likenesses, heavy = json.loads(in_python(ASK, **urls))
        log = worker.log.read_text()
    model = SentenceEncoder()
    model.load("cpu")
    expected = [model.predict([text])[0].tolist() for text in TEXTS]

    assert expected == [pytest.approx(each, abs=1e-4) for each in one_by_one]
    assert expected == [pytest.approx(each, abs=1e-4) for each in chunk]
    assert likenesses[0] > likenesses[1]
    assert ["numpy"] == heavy  # which the embeddings are arrays of
    assert "embed: warmed up with 11 shapes" in log


@pytest.mark.thorough("an example's pictures at each recorded size")
def test_pictures_meet_no_size_that_is_not_recorded():
    """Sizes are recorded in the warm-up, the largest first, and broken pictures need no other."""
    load_models(cuda_graphs.app, ["classify"])
    graphs = registry.instance_of(GraphClassifier).network
    recorded = list(graphs.recorded)
    files = [picture(colour) for colour in ("red", "green", "blue", "white", "black")]
    answers = cuda_graphs.classify.delay_rows(files).get()
    broken = model_calls(registry.instance_of(GraphClassifier))([files[0], b"no picture"])
    plain = ImageClassifier()
    plain.load("cpu")

    assert [32, 16, 8, 4, 2, 1] == recorded == list(graphs.recorded)
    assert model_calls(plain)(files) == answers
    assert (answers[0], ValueError) == (broken[0], type(broken[1]))


@pytest.mark.timeout(400)
def test_the_programs_print_what_workers_answer(tmp_path):
    """They take texts and pictures from the command line."""
    (tmp_path / "red.png").write_bytes(picture("red"))
    (answer,) = cuda_graphs.main(str(tmp_path / "red.png"))
    alike, unlike = sentence_embeddings.main("a star shines", "stars shine", "the cow jumped")

    assert answer["probability"] > 0
    assert alike > unlike


def image(width, height, seed=0) -> bytes:
    """Return the file of an image of noise."""
    file = BytesIO()
    pixels = bytes(random.Random(seed).choices(range(256), k=3 * width * height))  # noqa: S311
    Image.frombytes("RGB", (width, height), pixels).save(file, "PNG")
    return file.getvalue()


def test_a_batch_has_images_of_one_shape(broker, in_python, tmp_path):
    """Each is enlarged as it is alone, and what is no image fails alone."""
    shapes = [(8, 8), (8, 6), (16, 4)] * 7
    files = [image(*shape, seed) for seed, shape in enumerate(shapes)]
    for n, file in enumerate(files):
        (tmp_path / f"{n}.png").write_bytes(file)
    urls = {"CELERY_BROKER_URL": broker, "CELERY_RESULT_BACKEND": broker}
    command = [CELERY, "-A", "examples.images_by_shape", "worker", "--concurrency=1"]
    env = {**os.environ, **urls, "PYTHONPATH": str(ROOT)}
    with ManagedProcess([*command, "-l", "INFO"], tmp_path / "log", env=env) as worker:
        wait_until(
            lambda: "" if "ready." in worker.log.read_text() else "not ready",
            [worker],
            what="worker",
            timeout=120,
        )
        sizes, error, heavy = json.loads(in_python(SEND, FOLDER=str(tmp_path), **urls))
    model = Enlarger()
    model.load("cpu")
    expected = [Image.open(BytesIO(model.predict([file])[0])) for file in files]
    found = [Image.open(tmp_path / f"{n}.2x.png") for n in range(len(files))]

    assert [(2 * width, 2 * height) for width, height in shapes] == [each.size for each in found]
    assert [each.tobytes() for each in expected] == [each.tobytes() for each in found]
    assert max(sizes) > 1
    assert "InvalidKey" in error
    assert [] == heavy
