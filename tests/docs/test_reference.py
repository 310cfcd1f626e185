"""The reference names what the package offers."""

from __future__ import annotations

import re
from pathlib import Path

import celery_batch

API = Path(__file__).parents[2] / "docs" / "api.md"


def test_every_public_name_is_in_the_reference():
    """And nothing else, so no name stays after it has gone."""
    listed = re.findall(r"^\.\. auto(?:class|function|exception):: (\w+)$", API.read_text(), re.MULTILINE)

    assert sorted(listed) == sorted({*celery_batch.__all__} - {"__version__"})
