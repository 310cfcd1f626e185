# ruff: noqa: S106 (a token of a tokenizer is no secret)
from __future__ import annotations

import importlib
import os
import sys

import pytest
import torch

from celery_batch import LoadFailed
from workers.models.infilling import SENTENCES, TextInfilling

if os.environ.get("CI") == "true":
    transformers = importlib.import_module("transformers")  # missing there is a failure
else:
    transformers = pytest.importorskip("transformers")

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

LINES = [sentence.replace("[MASK]", "word") for sentence in SENTENCES]
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    # Loud weights, so that different sentences get different answers.
    "initializer_range": 1.0,
}


def _finish(tokenizer, begin, end):
    """Let the tokenizer put its own tokens around each sentence."""
    numbers = [(token, tokenizer.token_to_id(token)) for token in (begin, end)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        special_tokens=numbers,
    )
    return tokenizer


def _save_bert(folder):
    """Save a tiny BERT, whose mask is written as ours."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=40, **TINY
    )
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=_finish(tokenizer, "[CLS]", "[SEP]"),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)


def _save_roberta(folder):
    """Save a tiny RoBERTa, whose mask is written otherwise."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    config = transformers.RobertaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        # Two more than it can read: this family counts from behind its padding.
        max_position_embeddings=42,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        **TINY,
    )
    transformers.RobertaForMaskedLM(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=_finish(tokenizer, "<s>", "</s>"),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
    ).save_pretrained(folder)


def _save_distilbert(folder):
    """Save a tiny DistilBERT, whose scoring part has no common name."""
    _save_bert(folder)
    vocab_size = len(transformers.AutoTokenizer.from_pretrained(folder))
    config = transformers.DistilBertConfig(
        vocab_size=vocab_size,
        max_position_embeddings=40,
        dim=32,
        n_layers=2,
        n_heads=2,
        hidden_dim=64,
        initializer_range=1.0,
    )
    transformers.DistilBertForMaskedLM(config).save_pretrained(folder)


@pytest.fixture(
    scope="module",
    params=[_save_bert, _save_roberta, _save_distilbert],
    ids=lambda save: save.__name__,
)
def folder(request, tmp_path_factory):
    """Return a folder with a tiny random model and a real tokenizer."""
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("model")
    request.param(path)
    return path


@pytest.fixture
def model(folder, monkeypatch):
    """Yield the infilling model, told by the environment to use the folder."""
    monkeypatch.setenv("INFILL_MODEL", str(folder))
    loaded = TextInfilling()
    loaded.load("cpu")
    yield loaded
    loaded.unload()


def _by_the_book(folder, sentence):
    """Answer one sentence the plain way: every score of every token, no batch."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    inputs = tokenizer(sentence.replace("[MASK]", tokenizer.mask_token), return_tensors="pt")
    with torch.no_grad():
        scores = network(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
    ranked = [row.argsort(descending=True).tolist() for row in scores]
    best = [next(n for n in row if n not in tokenizer.all_special_ids) for row in ranked]
    return " ".join(tokenizer.decode([number]).strip() for number in best)


def test_answers_are_the_models_own(model, folder):
    """A batch of uneven sentences gets what the model says about each of them alone."""
    sentences = [*SENTENCES, "[MASK]", "the [MASK] and the [MASK] star.", "star " * 20 + "[MASK]"]
    expected = [_by_the_book(folder, sentence) for sentence in sentences]

    assert model.predict(sentences) == expected
    assert [model.predict([sentence])[0] for sentence in sentences] == expected
    assert len(set(expected)) > 2


def test_one_pass_for_a_batch(model):
    """A batch goes through the model once."""
    passes = []
    handle = model._filler.model.base_model.register_forward_hook(
        lambda *_: passes.append(torch.is_inference_mode_enabled()),
    )
    model.predict([*SENTENCES, None, "no mask"])
    handle.remove()

    assert passes == [True]
    assert not model._filler.model.training


def test_bad_items_leave_their_neighbours_alone(model):
    """Each bad item gets its own error; the good sentences their usual answers."""
    first, second, third = SENTENCES
    answers = model.predict([None, first, "no mask", second, "\ud83c [MASK]", third])

    assert answers[1::2] == model.predict(list(SENTENCES))
    assert [type(answer) for answer in answers[::2]] == [TypeError, ValueError, ValueError]


def test_the_longest_sentence_fits(model):
    """The model reads 40 tokens, its own begin and end included, and no more."""
    fits, too_long = model.predict(["[MASK]" * 38, "[MASK]" * 39])

    assert isinstance(fits, str)
    assert isinstance(too_long, ValueError)
    assert "41 tokens, but the model reads at most 40" in str(too_long)


def test_a_folder_without_a_model(monkeypatch, tmp_path):
    """A folder that holds no model is a failed load that names it and the way out."""
    monkeypatch.setenv("INFILL_MODEL", str(tmp_path))

    with pytest.raises(LoadFailed, match="unset it to use the small model") as caught:
        TextInfilling().load("cpu")

    assert f"INFILL_MODEL={tmp_path}" in str(caught.value)


def test_a_tokenizer_without_a_mask(monkeypatch, tmp_path):
    """A model whose tokenizer knows no mask cannot infill: the failed load says so."""
    _save_bert(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setenv("INFILL_MODEL", str(tmp_path))

    with pytest.raises(LoadFailed, match="no mask token"):
        TextInfilling().load("cpu")


def test_transformers_is_not_installed(monkeypatch):
    """Without transformers, the failed load says what to install."""
    monkeypatch.setenv("INFILL_MODEL", "bert-base-uncased")
    monkeypatch.delitem(sys.modules, "workers.models.bert", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)

    with pytest.raises(LoadFailed, match=r"pip install 'celery-batch\[transformers\]'"):
        TextInfilling().load("cpu")
