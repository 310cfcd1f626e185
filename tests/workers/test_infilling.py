from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from celery_batch import LoadFailed
from workers.models import infilling
from workers.models.infilling import SENTENCES, WEIGHTS, TextInfilling
from workers.models.rows import pad, places_of
from workers.models.vocabulary import MASK_ID, PAD_ID

MASKED_LINES = [
    tuple(line.split("\t"))
    for line in Path(__file__).with_name("masked_lines.txt").read_text("utf-8").splitlines()
]
ANSWERS = ["little", "you", "universe"]


@pytest.fixture(autouse=True)
def _small_model(monkeypatch):
    """Let no setting of the machine choose another model."""
    monkeypatch.delenv("INFILL_MODEL", raising=False)


@pytest.fixture(scope="module")
def model():
    """Yield the model as it ships, loaded on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("INFILL_MODEL", raising=False)
        loaded = TextInfilling()
        loaded.load("cpu")
    yield loaded
    loaded.unload()


def test_tutorial_sentences(model):
    """The three sentences of the tutorial get the tutorial's answers."""
    assert model.predict(list(SENTENCES)) == ANSWERS


def test_masked_lines_of_the_corpus(model):
    """At least 90 % of forty masked lines are answered as in the book."""
    answers = model.predict([sentence for sentence, _ in MASKED_LINES])
    right = [answer == word for answer, (_, word) in zip(answers, MASKED_LINES, strict=True)]

    assert len(right) == 40
    assert sum(right) >= 36


def test_masked_lines_are_lines_of_the_corpus():
    """Every examination line stands in the corpus, word for word."""
    texts = WEIGHTS.with_name("corpus").glob("*.txt")
    book = "\n".join(path.read_text("utf-8") for path in texts).lower()
    filled = [sentence.replace("[MASK]", word).lower() for sentence, word in MASKED_LINES]

    assert [line for line in filled if line not in book] == []


@pytest.mark.parametrize(
    "sentence",
    [
        "Twinkle, twinkle, [MASK] star,",
        "TWINKLE TWINKLE [MASK] STAR",
        "twinkle twinkle [MASK] star!",
        "twinkle twinkle[MASK]star.",
    ],
)
def test_spelling_of_a_line_does_not_matter(model, sentence):
    """Capitals, commas and the end of a line do not change the answer."""
    assert model.predict([sentence]) == ["little"]


def test_answers_do_not_depend_on_neighbours(model):
    """A sentence gets the same answer alone, beside long ones, and in any order."""
    sentences = [sentence for sentence, _ in MASKED_LINES] + ["[MASK]", "word " * 60 + "[MASK]"]
    alone = [model.predict([sentence])[0] for sentence in sentences]

    assert alone == model.predict(sentences)
    assert alone[::-1] == model.predict(sentences[::-1])


def test_padding_does_not_change_scores(model):
    """Scores stay the same, up to rounding, when a longer row joins the batch."""
    network = model._filler.network
    short, long = model._filler.encode([SENTENCES[0], "star " * 50 + "[MASK]"])
    with torch.inference_mode():
        alone, together = (
            network(tokens, places_of(tokens, MASK_ID, "cpu"))[0]
            for tokens in (pad([short], PAD_ID), pad([short, long], PAD_ID))
        )

    torch.testing.assert_close(alone, together, atol=1e-4, rtol=1e-4)


def test_several_masks_give_several_words(model):
    """Each mask of a sentence gets a word; the words come in order, with a space between."""
    answers = model.predict(["the [MASK] jumped over the [MASK];", SENTENCES[0]])

    assert answers == ["cow moon", "little"]


@pytest.mark.parametrize("item", [None, 7, b"[MASK]", ["[MASK]"], {"s": "[MASK]"}])
def test_an_item_that_is_no_string(model, item):
    """An item of a wrong type gets a TypeError that names the type."""
    (answer,) = model.predict([item])

    assert isinstance(answer, TypeError)
    assert type(item).__name__ in str(answer)


@pytest.mark.parametrize("item", ["", "twinkle twinkle little star.", "[mask]", "[PAD]"])
def test_a_sentence_without_a_mask(model, item):
    """A sentence without a mask gets a ValueError that names it and the way out."""
    (answer,) = model.predict([item])

    assert isinstance(answer, ValueError)
    assert f"no [MASK] in {item!r}: write [MASK] where" in str(answer)


def test_a_sentence_that_is_too_long(model):
    """A sentence of one token too many gets a ValueError with both numbers; one less fits."""
    fits, too_long = model.predict(["star " * 63 + "[MASK]", "star " * 64 + "[MASK]"])

    assert isinstance(fits, str)
    assert isinstance(too_long, ValueError)
    assert "65 tokens, but the model reads at most 64" in str(too_long)
    assert len(str(too_long)) < 250


def test_half_a_character(model):
    """Text that no file could hold gets a ValueError whose message can be sent."""
    (answer,) = model.predict(["\ud83c [MASK]"])

    assert isinstance(answer, ValueError)
    assert str(answer).isascii()


def test_bad_items_leave_their_neighbours_alone(model):
    """Good sentences among bad items get their usual answers, in their places."""
    first, second, third = SENTENCES
    answers = model.predict([None, first, "no mask", second, "a " * 99 + "[MASK]", third])

    assert answers[1::2] == ANSWERS
    assert [TypeError, ValueError, ValueError] == [type(answer) for answer in answers[::2]]


def test_an_empty_batch(model):
    """Nothing asked, nothing answered."""
    assert model.predict([]) == []


def test_one_pass_for_a_batch(model):
    """A batch of any size goes through the network once, without gradients."""
    passes = []
    handle = model._filler.network.register_forward_hook(
        lambda _network, _inputs, scores: passes.append((scores.shape[0], scores.requires_grad)),
    )
    model.predict([sentence for sentence, _ in MASKED_LINES] + [None])
    handle.remove()

    assert passes == [(40, False)]
    assert not model._filler.network.training
    assert not torch.is_inference_mode_enabled()


def test_examples_are_answerable(model):
    """The warm-up goes through the model without an error."""
    assert all(isinstance(answer, str) for answer in model.predict(list(model.examples())))


def test_predict_before_load():
    """A model that is not loaded, or let go, says so."""
    fresh = TextInfilling()

    with pytest.raises(RuntimeError, match="call load"):
        fresh.predict([SENTENCES[0]])

    fresh.load("cpu")
    fresh.unload()

    with pytest.raises(RuntimeError, match="call load"):
        fresh.predict([SENTENCES[0]])


def test_import_brings_no_torch():
    """Whoever only names the model, as a web server does, does not pay for torch."""
    code = (
        "import sys, workers.models.infilling\n"
        "heavy = {'torch', 'transformers', 'safetensors', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )

    assert done.stdout == "[]\n"


def test_weights_are_small():
    """The committed weights are one file of less than 5 MB."""
    assert WEIGHTS.stat().st_size < 5_000_000


def test_missing_weights(monkeypatch, tmp_path):
    """Without the weights file, the failed load names it and how to write it."""
    path = tmp_path / "lost.safetensors"
    monkeypatch.setattr(infilling, "WEIGHTS", path)

    with pytest.raises(LoadFailed, match=r"is missing.*workers\.models\.train_infilling") as caught:
        TextInfilling().load("cpu")

    assert str(path) in str(caught.value)


def _cut_short(path):
    """Write the first part of the true file."""
    path.write_bytes(WEIGHTS.read_bytes()[:1000])


def _of_another_shape(path):
    """Write true weights under a vocabulary that lacks a word."""
    with safe_open(WEIGHTS, framework="pt") as file:
        about = json.loads(file.metadata()["infilling"])
    about["words"] = about["words"][:-1]
    about["shape"]["words"] -= 1
    about["shape"]["tokens"] -= 1
    save_file(load_file(WEIGHTS), path, {"infilling": json.dumps(about)})


def _of_another_model(path):
    """Write weights that were never ours."""
    save_file({"weight": torch.zeros(3)}, path)


@pytest.mark.parametrize("spoil", [_cut_short, _of_another_shape, _of_another_model])
def test_weights_that_do_not_fit(monkeypatch, tmp_path, spoil):
    """A damaged or foreign weights file is a failed load that names it and the way out."""
    path = tmp_path / "strange.safetensors"
    spoil(path)
    monkeypatch.setattr(infilling, "WEIGHTS", path)

    with pytest.raises(
        LoadFailed, match=r"does not fit.*workers\.models\.train_infilling"
    ) as caught:
        TextInfilling().load("cpu")

    assert str(path) in str(caught.value)


def test_torch_is_not_installed(monkeypatch):
    """Without torch, the failed load says what to install."""
    monkeypatch.delitem(sys.modules, "workers.models.network", raising=False)
    monkeypatch.setitem(sys.modules, "safetensors", None)

    with pytest.raises(LoadFailed, match=r"pip install 'celery-batch\[torch\]'"):
        TextInfilling().load("cpu")
