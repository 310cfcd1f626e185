"""What a whole output was made of, and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from celery_batch.backfill.disk import writing

__all__ = ["About"]


class About:
    """
    The file beside a whole output that says what it was made of, and how.

    Args:
        output: The path of the output.
    """

    def __init__(self, output: Path) -> None:
        self.path = output.with_name(f"{output.name}.about")

    def write(self, about: dict[str, Any]) -> None:
        """Write down what the output is made of."""
        fresh = self.path.with_name(f"{self.path.name}.new")
        with writing(self.path):
            fresh.write_text(json.dumps(about) + "\n", encoding="utf-8")
            fresh.replace(self.path)

    def read(self) -> dict[str, Any]:
        """Return what the output was made of; nothing if that is not known."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
