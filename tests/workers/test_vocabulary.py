from __future__ import annotations

import pytest

from workers.models.vocabulary import MASK_ID, PAD_ID, UNKNOWN_ID, Vocabulary, split


@pytest.fixture
def vocabulary():
    """Return the words of two short lines."""
    return Vocabulary.learn(["Twinkle, twinkle, little star,", "Don't cry!"])


def test_split_words_and_marks():
    """Words lose their capitals; each punctuation mark is a token of its own."""
    tokens = split('Said the pieman, "Show me!"')

    assert tokens == ["said", "the", "pieman", ",", '"', "show", "me", "!", '"']


@pytest.mark.parametrize("sentence", ["don't", "DON'T", "don\u2019t"])
def test_split_keeps_an_apostrophe_inside_its_word(sentence):
    """A contraction is one word, however its apostrophe is written."""
    assert split(sentence) == ["don't"]


@pytest.mark.parametrize("sentence", ["star[MASK].", "star [MASK] ."])
def test_split_keeps_the_mask_whole(sentence):
    """The mask is one token, with or without spaces around it."""
    assert split(sentence) == ["star", "[MASK]", "."]


def test_split_reads_only_the_mask_as_special():
    """A user cannot type a padding or unknown token."""
    assert split("[PAD][UNK]") == ["[", "pad", "]", "[", "unk", "]"]


def test_split_loses_nothing_but_spaces():
    """Letters of any script, digits and underscores all come out as tokens."""
    text = "Fr\u00e8re 24 _ \u661f\u661f \U0001f31f"

    assert split(text) == ["fr\u00e8re", "24", "_", "\u661f\u661f", "\U0001f31f"]


def test_same_lines_give_the_same_numbers(vocabulary):
    """The order of the lines does not change the vocabulary."""
    other = Vocabulary.learn(["Don't cry!", "little star", "twinkle, twinkle"])

    assert vocabulary.tokens == other.tokens


def test_words_end_the_table(vocabulary):
    """Every token from the first word on is a word, and none before it."""
    assert vocabulary.words == vocabulary.tokens[vocabulary.first_word :]
    assert vocabulary.words == ("cry", "don't", "little", "star", "twinkle")
    assert vocabulary.marks == ("!", ",")


def test_encode_numbers_each_token(vocabulary):
    """Known tokens get their own numbers, back and forth."""
    numbers = vocabulary.encode("Twinkle, star!")

    assert [vocabulary.tokens[number] for number in numbers] == ["twinkle", ",", "star", "!"]


def test_encode_special_numbers(vocabulary):
    """The mask has its number, a strange word is unknown, and nothing is padding."""
    numbers = vocabulary.encode("[MASK] quasar [PAD]")

    assert numbers[:2] == [MASK_ID, UNKNOWN_ID]
    assert PAD_ID not in numbers


def test_vocabulary_comes_back_from_its_parts(vocabulary):
    """Marks and words are all that a file must keep."""
    again = Vocabulary(list(vocabulary.marks), list(vocabulary.words))

    assert vocabulary.tokens == again.tokens
    assert len(vocabulary) == len(again)


def test_no_tokens_in_an_empty_sentence(vocabulary):
    """White space holds no token."""
    assert vocabulary.encode(" \n\t") == []
