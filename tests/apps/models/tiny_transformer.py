"""A folder with a Hugging Face model that is too small to know anything."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["POSITIONS", "WORDS", "save_classifier"]

WORDS = ["good", "bad", "film", "book", "the", "was", "a", "and", "not", "very", "."]
#: The longest text that the model reads, in tokens.
POSITIONS = 32

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def save_classifier(folder: Path) -> None:
    """
    Write a BERT with three labels, random weights and a WordPiece tokenizer.

    Args:
        folder: Exists and is empty.
    """
    import torch  # noqa: PLC0415 (each takes seconds, which every test process would wait)
    import transformers  # noqa: PLC0415

    vocabulary = [*_SPECIAL, *WORDS, "##s", "##ly"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    tokenizer = {"tokenizer_class": "BertTokenizer", "model_max_length": POSITIONS}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
        # Large weights, so that different texts have different labels.
        initializer_range=1.0,
        id2label={0: "negative", 1: "neutral", 2: "positive"},
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
