"""The text-infilling model as it ships."""

from __future__ import annotations

import pytest

from workers.models.infilling import SENTENCES, TextInfilling

ANSWERS = ["little", "you", "universe"]

#: Lines that the model has learnt.
LINES = {
    "Jack and Jill went up the [MASK],": "hill",
    "To fetch a pail of [MASK];": "water",
    "The mouse ran up the [MASK].": "clock",
}


@pytest.fixture(scope="module")
def model():
    """Return the model, loaded on the CPU."""
    loaded = TextInfilling()
    loaded.load("cpu")
    return loaded


def test_tutorial_sentences(model):
    """The three sentences of the tutorial get the tutorial's answers."""
    assert ANSWERS == model.predict(list(SENTENCES))


def test_one_pass_for_a_batch(model):
    """A batch of any size goes through the network once, without gradients."""
    passes = []
    handle = model.encoder.register_forward_hook(
        lambda _network, _inputs, hidden: passes.append((len(hidden), hidden.requires_grad)),
    )
    model.predict([*SENTENCES, *LINES, None])
    handle.remove()

    assert [(6, False)] == passes


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (None, r"\[MASK\] is wanted, not None"),
        (b"[MASK]", r"\[MASK\] is wanted, not b'\[MASK\]'"),
        ("", r"\[MASK\] is wanted, not ''"),
        ("twinkle [mask]", r"\[MASK\] is wanted, not 'twinkle \[mask\]'"),
        ("\ud83c", r"\[MASK\] is wanted, not '\\ud83c'"),
        ("star " * 64 + "[MASK]", "65 tokens are too many, send 64 at most"),
    ],
)
def test_bad_items_leave_their_neighbours_alone(model, item, words):
    """A bad item gets a ValueError that says what is wanted; the others their usual answers."""
    first, error, *others = model.predict([SENTENCES[0], item, *SENTENCES[1:]])

    assert [first, *others] == ANSWERS
    with pytest.raises(ValueError, match=words):
        raise error


def test_import_brings_no_torch(in_python):
    """A process that only names the model, as a web server does, does not import torch."""
    code = (
        "import sys, workers.infill, workers.colours, workers.huggingface\n"
        "heavy = {'torch', 'transformers', 'safetensors', 'numpy', 'PIL'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )

    assert "[]" == in_python(code)
