"""The tutorial's service as it is run: the real model, a prefork worker, gunicorn."""

from __future__ import annotations

import pytest

SENTENCES = (
    "twinkle twinkle [MASK] star.",
    "Happy birthday to [MASK].",
    "the answer to life, the [MASK], and everything.",
)
WORDS = ["little", "you", "universe"]


@pytest.fixture(scope="module")
def infill_door(servers):
    """The Flask app of the demo, with a worker whose model is warm."""
    with (
        servers.worker("workers", options=["--concurrency=1"]),
        servers.door("webapp.flask_app:app", ready="/readyz") as door,
    ):
        yield door


def test_predict_infills_the_tutorials_sentences(infill_door):
    """The three sentences of the tutorial get the tutorial's words."""
    reply = infill_door.predict(*SENTENCES)

    assert (200, {"outputs": WORDS}) == (reply.status, reply.body)


@pytest.mark.parametrize("path", ["/stream", "/naive"])
def test_both_form_routes_infill_alike(infill_door, path):
    """Batched or one by one, the words are the same."""
    reply = infill_door.form(path, *SENTENCES)

    assert (200, WORDS) == (reply.status, reply.body)


def test_a_sentence_without_a_mask_is_unprocessable(infill_door):
    """What the model calls a bad input is the client's to mend, and fails alone."""
    reply = infill_door.predict(SENTENCES[0], "nothing to fill in")

    assert 200 == reply.status
    assert ["little", None] == reply.body["outputs"]
    assert reply.body["errors"]["1"]["type"] in {"ValueError", "TypeError"}
    assert "[MASK]" in reply.body["errors"]["1"]["message"]


def test_readyz_knows_the_model(infill_door):
    """The probe names the worker that has the model warm for both tasks."""
    reply = infill_door.ask("GET", "/readyz")

    assert {"workers.infill", "workers.infill_one"} == reply.body["workers"].keys()
