"""What a message holds in the place of a value that is stored beside it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Self

from celery_batch.serialization.arrays import itemsize_of

__all__ = ["STORED", "StoredValue"]

#: The type of stored values in kombu's JSON.
STORED = "batch-payload"


class StoredValue:
    """
    Stands in a message for a value that is stored beside it.

    Args:
        index: Which of the stored values it is, from 0.
        kind: "ndarray", "tensor", "bytes" or "json".
        dtype: Of an array.
        shape: Of an array.
    """

    __slots__ = ("dtype", "index", "kind", "shape")

    #: As arrays, since equal ones cannot be told here.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, index: int, kind: str, dtype: str = "", shape: Sequence[int] = ()) -> None:
        self.index, self.kind, self.dtype, self.shape = index, kind, dtype, tuple(shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements of an array; raise `ValueError` for another kind of value."""
        return prod(self.shape) * itemsize_of(self.kind, self.dtype)

    def __len__(self) -> int:
        """Return the length of its first dimension."""
        if not self.shape:
            raise TypeError(f"{self!r} has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        """Return kind, type and shape."""
        return f"{self.kind}({self.dtype}, {list(self.shape)})" if self.dtype else f"<{self.kind}>"

    def to_json(self) -> list[Any]:
        """Return it as kombu's JSON has it."""
        return [self.index, self.kind, self.dtype, [*self.shape]]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """
        Return the value that `to_json` has written.

        Raises:
            ValueError: It is something else.
        """
        try:
            index, kind, dtype, shape = value
        except (TypeError, ValueError):
            raise ValueError("a stored value has an index, a kind, a dtype and a shape") from None
        are_lengths = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
        are_texts = type(kind) is str and type(dtype) is str
        if not (type(index) is int and index >= 0 and are_lengths and are_texts):
            raise ValueError("a stored value has an index, a kind, a dtype and a shape")
        return cls(index, kind, dtype, shape)
