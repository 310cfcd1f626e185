"""The files for an app of one's own that the pages on Docker, systemd and Kubernetes show."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["shown", "time_limit"]

_PAGES = Path(__file__).parents[3] / "docs" / "how-to" / "operations"


def shown(page: str, language: str) -> str:
    """Return the one block of a page that is in a language."""
    text = (_PAGES / f"{page}.md").read_text()
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return block


def time_limit() -> int:
    """Return the seconds after which the longest batch ends in the image that is shown."""
    return int(re.findall(r"--time-limit=(\d+)", shown("docker", "dockerfile"))[0])
