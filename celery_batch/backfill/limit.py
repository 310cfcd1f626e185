"""How many failures are too many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from celery_batch.errors import BackfillError

__all__ = ["ErrorLimit"]

#: Rows after which a share of them says something.
_ENOUGH = 100


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """
    The most rows that may fail before a hopeless job stops.

    Args:
        count: So many; None for any number.
        share: Of all rows that have come to their end, from 0 to 1; None for any share.
    """

    count: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        Read ``"100"`` or ``"5%"``.

        Raises:
            BackfillError: It is neither.
        """
        digits = text.strip()
        try:
            if digits.endswith("%"):
                share = float(digits[:-1]) / 100
                if 0 <= share <= 1:
                    return cls(share=share)
            elif int(digits) >= 0:
                return cls(count=int(digits))
        except ValueError:
            pass
        raise BackfillError(f"--max-errors: must be a number or a percentage, got {text!r}")

    def check(self, done: int, failed: int) -> None:
        """
        Do nothing while few enough rows have failed.

        Raises:
            BackfillError: There are more than that.
        """
        over = self.count is not None and failed > self.count
        if self.share is not None and done >= _ENOUGH:
            over = over or failed > self.share * done
        if over:
            raise BackfillError(
                f"{failed:,} of {done:,} rows have failed, more than --max-errors allows;"
                " what was answered is kept, and the same command goes on if it allows more"
            )
