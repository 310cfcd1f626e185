from __future__ import annotations

import pytest

from workers.models.network import WordFiller, restore, save
from workers.models.train_infilling import CORPUS, Plan, main, mistakes, read_corpus, train


@pytest.mark.thorough("training the example's model")
def test_training_can_be_repeated(tmp_path):
    """The same plan gives the same file, byte for byte; another seed gives another."""
    pieces = read_corpus(CORPUS)
    for name, seed in (("once", 1), ("again", 1), ("other", 2)):
        save(tmp_path / name, *train(pieces, Plan(steps=10, batch_size=16, seed=seed)))
    once, again, other = ((tmp_path / name).read_bytes() for name in ("once", "again", "other"))

    assert once == again
    assert once != other


@pytest.mark.thorough("training the example's model")
def test_training_learns(tmp_path, capsys):
    """A short training on two rhymes is enough to know them; the file keeps what was learnt."""
    pieces = [["Jack be nimble, Jack be quick,"], ["Hickory, dickory, dock,"]]
    lines = [("Jack be [MASK], Jack be quick,", "nimble"), ("hickory [MASK] dock", "dickory")]
    save(tmp_path / "weights", *train(pieces, Plan(steps=60, batch_size=16)))
    filler = WordFiller(*restore(tmp_path / "weights"), "cpu")

    assert mistakes(filler, lines) == []
    assert mistakes(
        filler,
        [*lines, ("[MASK] be quick", "jill")],
    ) == ["[MASK] be quick  ->  jack, not jill"]
    assert "step    60 of 60" in capsys.readouterr().out


def test_a_bad_model_is_not_kept(tmp_path, capsys):
    """A training that ends too early fails, says what is wrong, and writes nothing."""
    out = tmp_path / "weights"

    assert main(["--steps", "2", "--out", str(out)]) == 1
    assert not out.exists()
    assert "Not good enough" in capsys.readouterr().out
