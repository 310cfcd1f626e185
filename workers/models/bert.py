"""Real BERT and its relatives, through ``transformers``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

from workers.models.rows import Places, joined, pad, places_of
from workers.models.vocabulary import MASK

__all__ = ["BertFiller"]

#: The part that scores words, as BERT's and RoBERTa's families call it.
_HEADS = ("cls", "lm_head")


class BertFiller:
    """
    A pretrained masked-language model with its own tokenizer, on a device.

    Args:
        name: A local folder or a hub id.
        device: ``"cpu"`` or ``"cuda:0"``.

    Raises:
        OSError: There is no such model.
        ValueError: It is no masked-language model.
    """

    def __init__(self, name: str, device: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(name)
        if self.tokenizer.mask_token_id is None:
            msg = "its tokenizer has no mask token"
            raise ValueError(msg)
        self.model = AutoModelForMaskedLM.from_pretrained(name).to(device).eval()
        self.device = device
        self.mask: int = self.tokenizer.mask_token_id
        self.padding: int = self.tokenizer.pad_token_id or 0
        self.positions = min(self.tokenizer.model_max_length, _places_in(self.model))
        # A special token is never a word that was masked.
        self.unwanted = torch.tensor(sorted(set(self.tokenizer.all_special_ids)), device=device)

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Number the tokens of each sentence, ``[MASK]`` being the tokenizer's own mask."""
        texts = [sentence.replace(MASK, self.tokenizer.mask_token) for sentence in sentences]
        rows: list[list[int]] = self.tokenizer(texts, verbose=False)["input_ids"]
        return rows

    @torch.inference_mode()
    def fill(self, rows: list[list[int]]) -> list[str]:
        """
        Answer a batch in one pass through the model.

        Args:
            rows: Token numbers, each with a mask and no longer than `positions`.

        Returns:
            The likeliest token for each row, as text; several, joined by a space,
            where a row has several masks.
        """
        tokens = pad(rows, self.padding)
        attention = pad([[1] * len(row) for row in rows], 0)
        places = places_of(tokens, self.mask, self.device)
        scores = self._scores(tokens.to(self.device), attention.to(self.device), places)
        scores[:, self.unwanted] = -torch.inf
        words = (str(self.tokenizer.decode([best])).strip() for best in scores.argmax(-1).tolist())
        return joined(words, rows, self.mask)

    def _scores(self, tokens: Tensor, attention: Tensor, places: Places) -> Tensor:
        head = next(
            (getattr(self.model, name) for name in _HEADS if hasattr(self.model, name)), None
        )
        inputs = {"input_ids": tokens, "attention_mask": attention}
        if head is None:
            logits: Tensor = self.model(**inputs).logits[places]
            return logits
        # A score for each of 30,000 tokens is wanted at the masks alone.
        scores: Tensor = head(self.model.base_model(**inputs)[0][places])
        return scores


def _places_in(model: Any) -> int:
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    first = getattr(table, "padding_idx", None)
    # RoBERTa's family starts counting behind the number of its padding.
    return int(model.config.max_position_embeddings) - (0 if first is None else first + 1)
