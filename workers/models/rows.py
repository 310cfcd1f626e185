"""What every masked-language model does with rows of token numbers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import torch
from torch import Tensor

__all__ = ["Places", "joined", "pad", "places_of"]

#: Row numbers and column numbers of some tokens in a batch, in reading order.
Places = tuple[Tensor, ...]


def pad(rows: list[list[int]], value: int) -> Tensor:
    """
    Stack rows of different lengths.

    Args:
        rows: Token numbers, one row per sentence, at least one.
        value: The number that fills the shorter rows up.

    Returns:
        Numbers of shape (rows, longest row), on the CPU.
    """
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def places_of(tokens: Tensor, mask: int, device: str) -> Places:
    """
    Find the masks of a batch.

    Args:
        tokens: Shape (rows, columns), still on the CPU: looking for the masks on
            a GPU would make the CPU wait for it.
        mask: The number of the mask token.
        device: Where the places will be used.

    Returns:
        Where the masks are.
    """
    return tuple(axis.to(device) for axis in (tokens == mask).nonzero(as_tuple=True))


def joined(words: Iterable[str], rows: list[list[int]], mask: int) -> list[str]:
    """
    Give each row the words of its own masks.

    Args:
        words: One word per mask, in reading order through all the rows.
        rows: The token numbers that were asked about.
        mask: The number of the mask token.

    Returns:
        One string per row; the words of several masks stand in order, with a
        space between them.
    """
    remaining = iter(words)
    return [" ".join(islice(remaining, row.count(mask))) for row in rows]
