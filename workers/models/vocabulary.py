"""Sentences to numbers and back, a word at a time; standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["MASK", "MASK_ID", "PAD", "PAD_ID", "UNKNOWN", "UNKNOWN_ID", "Vocabulary", "split"]

PAD, UNKNOWN, MASK = "[PAD]", "[UNK]", "[MASK]"
_SPECIAL = (PAD, UNKNOWN, MASK)
PAD_ID, UNKNOWN_ID, MASK_ID = range(len(_SPECIAL))

# Only the mask can be asked for in a sentence: "[PAD]" typed by a user is three plain tokens.
_TOKEN = re.compile(r"\[MASK\]|[^\W_]+(?:'[^\W_]+)*|[^\w\s]|_")
_CURLY = str.maketrans("\u2018\u2019", "''")


def split(sentence: str) -> list[str]:
    """
    Split a sentence into lower-case words and single punctuation marks.

    Args:
        sentence: Any text; ``[MASK]``, in capitals, stays one token.

    Returns:
        The tokens, in order.
    """
    tokens = _TOKEN.findall(sentence.translate(_CURLY))
    return [token if token == MASK else token.lower() for token in tokens]


class Vocabulary:
    """
    The tokens a network knows, in the order of their numbers.

    The special tokens come first, then the punctuation marks, then the words:
    the words are the end of the table, so that a network which must answer with
    a word needs no other scores.

    Args:
        marks: Punctuation marks, one character each.
        words: Lower-case words.
    """

    def __init__(self, marks: Sequence[str], words: Sequence[str]) -> None:
        self.marks = tuple(marks)
        self.words = tuple(words)
        self.tokens = (*_SPECIAL, *self.marks, *self.words)
        #: The number of the first word; every token from here on is a word.
        self.first_word = len(_SPECIAL) + len(self.marks)
        self._numbers = {token: number for number, token in enumerate(self.tokens)}

    @classmethod
    def learn(cls, lines: Iterable[str]) -> Vocabulary:
        """
        Collect every token of some lines.

        Args:
            lines: Text without masks.

        Returns:
            A vocabulary in alphabetical order: the same lines give the same numbers.
        """
        tokens = sorted({token for line in lines for token in split(line)})
        words = [token for token in tokens if token[0].isalnum()]
        marks = [token for token in tokens if not token[0].isalnum()]
        return cls(marks, words)

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, sentence: str) -> list[int]:
        """
        Number the tokens of a sentence.

        Args:
            sentence: Any text; a token never seen becomes ``[UNK]``.

        Returns:
            One number per token.
        """
        number = self._numbers.get
        return [number(token, UNKNOWN_ID) for token in split(sentence)]
