"""Text infilling: ``twinkle twinkle [MASK] star.`` becomes ``little``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from celery_batch import LoadFailed, Model
from workers.models.vocabulary import MASK

__all__ = ["SENTENCES", "WEIGHTS", "TextInfilling"]

WEIGHTS = Path(__file__).with_name("infilling.safetensors")

#: What the model is warmed up with, and must know.
SENTENCES = (
    "twinkle twinkle [MASK] star.",
    "Happy birthday to [MASK].",
    "the answer to life, the [MASK], and everything.",
)

#: How much of an input an error message repeats, in characters.
_QUOTED = 60


class Filler(Protocol):
    """A loaded language model that knows its own numbers for tokens."""

    #: The longest row that fits, in tokens.
    positions: int

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Number the tokens of each sentence, ``[MASK]`` included."""

    def fill(self, rows: list[list[int]]) -> list[str]:
        """Answer each row, all in one pass."""


class TextInfilling(Model):
    """
    A model that finds the masked word of a sentence.

    It answers with one word for each ``[MASK]``, several joined by a space, each
    found without knowing the others.  By default it is the small network whose
    weights lie beside this file; where the environment variable ``INFILL_MODEL``
    names a local folder or a hub id, it is that model, through ``transformers``.
    """

    def __init__(self) -> None:
        self._filler: Filler | None = None

    def load(self, device: str) -> None:
        name = os.environ.get("INFILL_MODEL")
        self._filler = _pretrained(name, device) if name else _trained_here(WEIGHTS, device)

    def examples(self) -> tuple[str, ...]:
        return SENTENCES

    def predict(self, batch: list[Any]) -> list[str | Exception]:
        """
        Find the masked words.

        Args:
            batch: Sentences, each with at least one ``[MASK]``.

        Returns:
            A word per sentence; for an input that cannot be answered, a TypeError
            or ValueError that says why, without harm to the others.

        Raises:
            RuntimeError: The model is not loaded.
        """
        if self._filler is None:
            msg = "the model is not loaded: call load(device) before predict(batch)"
            raise RuntimeError(msg)
        rows = _prepare(batch, self._filler)
        good = [row for row in rows if not isinstance(row, Exception)]
        answers = iter(self._filler.fill(good) if good else ())
        return [row if isinstance(row, Exception) else next(answers) for row in rows]

    def unload(self) -> None:
        self._filler = None


def _prepare(batch: list[Any], filler: Filler) -> list[list[int] | Exception]:
    problems = [_problem(item) for item in batch]
    readable = [item for item, problem in zip(batch, problems, strict=True) if problem is None]
    rows = iter(filler.encode(readable) if readable else ())
    return [
        problem or _fitting(next(rows), item, filler.positions)
        for item, problem in zip(batch, problems, strict=True)
    ]


def _problem(item: Any) -> Exception | None:
    if not isinstance(item, str):
        return TypeError(f"an input must be a string with {MASK}, not {type(item).__name__}")
    if MASK not in item:
        return ValueError(f"no {MASK} in {_quoted(item)}: write {MASK} where a word is wanted")
    try:
        item.encode()
    except UnicodeEncodeError:
        return ValueError(f"{_quoted(item)} has half a character in it: send well-formed Unicode")
    return None


def _fitting(row: list[int], item: str, positions: int) -> list[int] | Exception:
    if len(row) <= positions:
        return row
    return ValueError(
        f"{_quoted(item)} has {len(row)} tokens, but the model reads at most {positions}: "
        f"send a shorter text around {MASK}",
    )


def _quoted(item: str) -> str:
    return ascii(item if len(item) <= _QUOTED else item[: _QUOTED - 3] + "...")


def _trained_here(path: Path, device: str) -> Filler:
    remedy = "run `python -m workers.models.train_infilling` to write it anew (about two minutes)"
    try:
        from workers.models.network import WordFiller, restore  # noqa: PLC0415 (brings in torch)
    except ImportError as exc:
        msg = f"text infilling needs torch: pip install 'celery-batch[torch]' ({exc})"
        raise LoadFailed(msg) from exc
    try:
        network, vocabulary = restore(path)
    except FileNotFoundError as exc:
        msg = f"the weights file {path} is missing: {remedy}"
        raise LoadFailed(msg) from exc
    except (OSError, ValueError) as exc:
        msg = f"the weights file {path} does not fit this model ({exc}): {remedy}"
        raise LoadFailed(msg) from exc
    return WordFiller(network, vocabulary, device)


def _pretrained(name: str, device: str) -> Filler:
    try:
        from workers.models.bert import BertFiller  # noqa: PLC0415 (brings in transformers)
    except ImportError as exc:
        msg = (
            f"INFILL_MODEL={name} needs transformers: pip install 'celery-batch[transformers]', "
            f"or unset it to use the small model ({exc})"
        )
        raise LoadFailed(msg) from exc
    try:
        return BertFiller(name, device)
    except Exception as exc:  # each family of models has its own kinds of errors
        msg = (
            f"INFILL_MODEL={name} could not be loaded as a masked-language model ({exc}): name a "
            f"local folder or a hub id that holds one, or unset it to use the small model"
        )
        raise LoadFailed(msg) from exc
