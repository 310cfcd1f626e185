"""
Train the text-infilling model: ``python -m workers.models.train_infilling``.

Reads ``corpus/*.txt``, writes ``infilling.safetensors``, and only if the model
knows the tutorial's sentences and the masked lines.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from workers.models.infilling import SENTENCES, WEIGHTS
from workers.models.network import Network, Shape, WordFiller, save
from workers.models.rows import pad
from workers.models.vocabulary import MASK_ID, PAD_ID, UNKNOWN_ID, Vocabulary, split

__all__ = ["Plan", "main", "mistakes", "read_corpus", "read_masked_lines", "train"]

CORPUS = Path(__file__).with_name("corpus")
MASKED_LINES = Path(__file__).parents[2] / "tests" / "workers" / "masked_lines.txt"
TUTORIAL = tuple(zip(SENTENCES, ("little", "you", "universe"), strict=True))
#: The share of the masked lines that must be right.
ENOUGH = 0.9

#: How many neighbouring lines make one text, and how often: mostly one, and
#: some of more, so that late positions are learnt too.
_SPANS = {1: 0.85, 2: 0.12, 4: 0.03}
#: The share of unmasked words hidden as unknown, so that strange words do no harm.
_NOISE = 0.03
#: Steps until the learning rate is at its height; from there it falls in a straight line.
_WARM_UP = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to train."""

    steps: int = 2000
    #: Texts in each step.
    batch_size: int = 64
    learning_rate: float = 3e-3
    seed: int = 7
    #: Sums come out the same only where as many threads add them up.
    threads: int = 2


def read_corpus(folder: Path) -> list[list[str]]:
    """
    Read every text file of a folder.

    Args:
        folder: Holds ``*.txt``, one line of text per line, an empty line after each piece.

    Returns:
        The lines of each piece.
    """
    texts = [path.read_text(encoding="utf-8").strip() for path in sorted(folder.glob("*.txt"))]
    return [piece.splitlines() for text in texts for piece in re.split(r"\n{2,}", text)]


def read_masked_lines(path: Path) -> list[tuple[str, str]]:
    """
    Read the examination.

    Args:
        path: Lines of a masked sentence, a tab, and the word that was masked.

    Returns:
        Sentences with their answers.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t") for line in lines if line.strip()]
    return [(sentence, answer) for sentence, answer in pairs]


def mistakes(filler: WordFiller, lines: Sequence[tuple[str, str]]) -> list[str]:
    """
    Examine a model.

    Args:
        filler: The trained model.
        lines: Masked sentences with their answers.

    Returns:
        What it answers wrong, a line of text for each.
    """
    answers = filler.fill(filler.encode([sentence for sentence, _ in lines]))
    return [
        f"{sentence}  ->  {answer}, not {wanted}"
        for answer, (sentence, wanted) in zip(answers, lines, strict=True)
        if answer != wanted
    ]


def train(pieces: list[list[str]], plan: Plan) -> tuple[Network, Vocabulary]:
    """
    Train a new network on some pieces of text.

    Args:
        pieces: The lines of each piece.
        plan: How; the same plan gives the same weights on the same machine.

    Returns:
        The network, and the words it knows.
    """
    torch.manual_seed(plan.seed)
    torch.set_num_threads(plan.threads)
    vocabulary = Vocabulary.learn(line for piece in pieces for line in piece)
    network = Network(Shape(tokens=len(vocabulary), words=len(vocabulary.words)))
    optimizer = torch.optim.AdamW(network.parameters(), plan.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / _WARM_UP) * (1 - step / (plan.steps + 1))
    )
    started = time.monotonic()
    batches = _batches(pieces, vocabulary, plan)
    for step, tokens in enumerate(islice(batches, plan.steps), start=1):
        loss = _loss(network, tokens, vocabulary.first_word)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == plan.steps:
            seconds = time.monotonic() - started
            _say(f"step {step:5d} of {plan.steps}   loss {loss.item():.3f}   {seconds:5.1f} s")
    return network.eval(), vocabulary


def _batches(pieces: list[list[str]], vocabulary: Vocabulary, plan: Plan) -> Iterator[Tensor]:
    draw = random.Random(plan.seed)  # noqa: S311 (to be repeated, not to be secret)
    texts = {span: _texts(pieces, span, vocabulary) for span in _SPANS}
    size = plan.batch_size
    while True:
        (span,) = draw.choices(list(_SPANS), list(_SPANS.values()))
        # Neighbours in length share a batch: little of the work goes into padding.
        several = sorted(draw.choices(texts[span], k=8 * size), key=len)
        cuts = list(range(0, len(several), size))
        draw.shuffle(cuts)
        for cut in cuts:
            yield pad(several[cut : cut + size], PAD_ID)


def _texts(pieces: list[list[str]], span: int, vocabulary: Vocabulary) -> list[list[int]]:
    longest = Shape(tokens=0, words=0).positions
    return [
        vocabulary.encode(text)[:longest]
        for piece in pieces
        for first in range(max(1, len(piece) - span + 1))
        for text in _spellings(" ".join(piece[first : first + span]))
    ]


def _spellings(text: str) -> list[str]:
    # People write a line with other commas than the book, and with another end.
    bare = " ".join(token for token in split(text) if token[0].isalnum())
    return [text, f"{text.rstrip(',;:!?.')}.", f"{bare}.", bare]


def _loss(network: Network, tokens: Tensor, first_word: int) -> Tensor:
    words = tokens >= first_word
    masked = _choose(words)
    noise = words & ~masked & (torch.rand(tokens.shape) < _NOISE)
    shown = tokens.masked_fill(masked, MASK_ID).masked_fill(noise, UNKNOWN_ID)
    scores = network(shown, masked.nonzero(as_tuple=True))
    return nn.functional.cross_entropy(scores, tokens[masked] - first_word)


def _choose(words: Tensor) -> Tensor:
    # One word in most texts, as it will be asked; two or three in some, to learn more each step.
    order = torch.rand(words.shape).masked_fill(~words, -1.0).argsort(1, descending=True).argsort(1)
    wanted = torch.tensor([1, 1, 1, 2, 3])[torch.randint(5, (len(words), 1))]
    return words & (order < wanted)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 (a command speaks to its user)


def _passes(filler: WordFiller, lines: Sequence[tuple[str, str]]) -> bool:
    strange = mistakes(filler, TUTORIAL)
    wrong = mistakes(filler, lines)
    _say(f"tutorial sentences: {len(TUTORIAL) - len(strange)} of {len(TUTORIAL)} right")
    _say(f"masked lines: {len(lines) - len(wrong)} of {len(lines)} right, {ENOUGH:.0%} wanted")
    for line in strange + wrong:
        _say(f"  {line}")
    return not strange and len(wrong) <= (1 - ENOUGH) * len(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Train, examine, and keep the weights if they are good.

    Args:
        arguments: The command line; None for the process's own.

    Returns:
        0, or 1 if the model failed and nothing was written.
    """
    plan = Plan()
    parser = argparse.ArgumentParser(description="Train the text-infilling model.")
    parser.add_argument("--steps", type=int, default=plan.steps)
    parser.add_argument("--seed", type=int, default=plan.seed)
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where the weights go")
    options = parser.parse_args(arguments)
    pieces = read_corpus(CORPUS)
    _say(f"{sum(map(len, pieces))} lines in {len(pieces)} pieces")
    network, vocabulary = train(pieces, replace(plan, steps=options.steps, seed=options.seed))
    if not _passes(WordFiller(network, vocabulary, "cpu"), read_masked_lines(MASKED_LINES)):
        _say("Not good enough: nothing written. Give it more --steps, or look at the corpus.")
        return 1
    save(options.out, network, vocabulary)
    _say(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB, {len(vocabulary)} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
