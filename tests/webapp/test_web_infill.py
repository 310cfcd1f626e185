"""The tutorial's service as it is run: the real model, a prefork worker, gunicorn."""

from __future__ import annotations

import base64
import io
import json
import os

import pytest
from PIL import Image
from web_door import JSON

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
        servers.door("flask", ready="/readyz", WEBAPP_CONTRACT="webapp.service:infilling") as door,
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


def drawn(*stripes, size=(90, 20)):
    """Return the file of a picture of upright stripes."""
    image = Image.new("RGB", size)
    for number, colour in enumerate(stripes):
        left = number * size[0] // len(stripes)
        image.paste(colour, (left, 0, *size))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def uploaded(door, *files):
    """POST files to /pictures as a browser's form does."""
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="picture"; filename="a.png"\r\n'
        b"Content-Type: image/png\r\n\r\n" + file + b"\r\n"
        for file in files
    ]
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    return door.ask("POST", "/pictures", b"".join(parts) + b"--x--\r\n", headers)


def test_pictures_are_told_their_colours(infill_door):
    """Pictures of different sizes in one form are answered with what anybody can see."""
    reply = uploaded(infill_door, drawn("red"), drawn("blue", "yellow", size=(700, 2)))

    assert 200 == reply.status
    assert [{"name": "red", "share": 1.0}] == reply.body["outputs"][0]
    assert {("blue", 0.5), ("yellow", 0.5)} == {
        (each["name"], each["share"]) for each in reply.body["outputs"][1]
    }


def test_a_picture_that_cannot_be_decoded_fails_alone(infill_door):
    """What only the model can see is wrong is the client's to mend, and nobody else's."""
    texts = [base64.b64encode(each).decode() for each in (drawn("red"), drawn("red")[:45])]
    reply = infill_door.ask("POST", "/pictures", json.dumps({"pictures": texts}), JSON)

    assert 200 == reply.status
    assert [[{"name": "red", "share": 1.0}], None] == reply.body["outputs"]
    assert "ValueError" == reply.body["errors"]["1"]["type"]


@pytest.mark.parametrize("size", [100_000, 2_000_000])
def test_a_byte_of_a_picture_is_hardly_more_on_the_wire(servers, infill_door, size):
    """To Redis and from there to the worker, a file takes at most 1.4 times its size."""
    file = drawn("red") + os.urandom(size)
    uploaded(infill_door, drawn("blue"))  # so that everybody is connected
    before = servers.client().info("stats")
    reply = uploaded(infill_door, *[file] * 3)
    after = servers.client().info("stats")
    ratios = [
        (after[name] - before[name]) / (3 * len(file))
        for name in ("total_net_input_bytes", "total_net_output_bytes")
    ]

    assert [[{"name": "red", "share": 1.0}]] * 3 == reply.body["outputs"]
    assert [] == [ratio for ratio in ratios if not 1.33 < ratio < 1.4], ratios
