"""
A small masked-language model: ``twinkle twinkle [MASK] star.`` becomes ``little``.

``infilling.safetensors`` was trained from scratch for this repository, on nursery rhymes, poems
and proverbs in the public domain, and holds nothing of other models.  The texts and the training
program are in the repository's history, as ``workers/models/corpus`` and ``train_infilling.py``.
"""

from __future__ import annotations

import json
import re
import reprlib
from itertools import islice
from pathlib import Path
from typing import Any

from celery_batch import Model

__all__ = ["SENTENCES", "TextInfilling"]

#: What the model is warmed up with, and must know.
SENTENCES = (
    "twinkle twinkle [MASK] star.",
    "Happy birthday to [MASK].",
    "the answer to life, the [MASK], and everything.",
)

_WEIGHTS = Path(__file__).with_name("infilling.safetensors")
_SPECIAL = ("[PAD]", "[UNK]", "[MASK]")
_PAD, _UNKNOWN, _MASK = range(len(_SPECIAL))
_TOKEN = re.compile(r"\[MASK\]|[^\W_]+(?:'[^\W_]+)*|[^\w\s]|_")


class TextInfilling(Model):
    """
    A model that finds the masked word of a sentence.

    It answers with a word for each ``[MASK]``, several joined by a space, each found without
    knowing the others.  What is no sentence with a mask, or too long, is a ValueError in its
    place, without harm to the others of its batch.
    """

    def load(self, device: str) -> None:
        import torch
        from safetensors import safe_open
        from torch import nn

        if device == "cpu":
            # So small a network gains nothing from several threads, and a web server
            # on the same machine needs them.
            torch.set_num_threads(1)
        with safe_open(_WEIGHTS, framework="pt", device=device) as file:
            about = json.loads(file.metadata()["infilling"])
            self.weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
        # The words are the end of the table of tokens: only they are answers.
        self.words: list[str] = about["words"]
        tokens = (*_SPECIAL, *about["marks"], *self.words)
        self.numbers = {token: number for number, token in enumerate(tokens)}
        width, self.positions = about["shape"]["width"], about["shape"]["positions"]
        layer = nn.TransformerEncoderLayer(
            width,
            about["shape"]["heads"],
            4 * width,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        layers, norm = about["shape"]["layers"], nn.LayerNorm(width)
        encoder = nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False)
        encoder.load_state_dict(
            {
                name.removeprefix("encoder."): weight
                for name, weight in self.weights.items()
                if name.startswith("encoder.")
            }
        )
        self.encoder = encoder.to(device).eval()
        self.device = device

    def examples(self) -> tuple[str, ...]:
        return SENTENCES

    def predict(self, batch: list[Any]) -> list[str | ValueError]:
        rows = [self._encode(item) for item in batch]
        good = [row for row in rows if isinstance(row, list)]
        answers = iter(self._fill(good) if good else ())
        return [next(answers) if isinstance(row, list) else row for row in rows]

    def _encode(self, item: Any) -> list[int] | ValueError:
        """Number the tokens of a sentence: words in lower case, and punctuation marks."""
        if not isinstance(item, str) or "[MASK]" not in item:
            return ValueError(f"a sentence with [MASK] is wanted, not {reprlib.repr(item)}")
        tokens = _TOKEN.findall(item.translate({0x2018: "'", 0x2019: "'"}))
        if len(tokens) > self.positions:
            return ValueError(f"{len(tokens)} tokens are too many, send {self.positions} at most")
        words = (text if text == "[MASK]" else text.lower() for text in tokens)
        return [self.numbers.get(word, _UNKNOWN) for word in words]

    def _fill(self, rows: list[list[int]]) -> list[str]:
        """Find the words of all rows in one pass through the network."""
        import torch
        from torch.nn.functional import linear
        from torch.nn.utils.rnn import pad_sequence

        several = [torch.tensor(row) for row in rows]
        tokens = pad_sequence(several, batch_first=True, padding_value=_PAD).to(self.device)
        table, positions = self.weights["tokens.weight"], self.weights["positions.weight"]
        with torch.inference_mode():
            hidden = table[tokens] + positions[: tokens.shape[1]]
            hidden = self.encoder(hidden, src_key_padding_mask=tokens == _PAD)
            scores = linear(
                hidden[tokens == _MASK], table[-len(self.words) :], self.weights["bias"]
            )
        words = (self.words[number] for number in scores.argmax(-1).tolist())
        return [" ".join(islice(words, row.count(_MASK))) for row in rows]
