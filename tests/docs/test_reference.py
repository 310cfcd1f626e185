"""The reference names what the package offers."""

from __future__ import annotations

import re
from pathlib import Path

import celery_batch

API = Path(__file__).parents[2] / "docs" / "reference" / "api.md"


def test_every_public_name_is_in_the_reference():
    """And nothing else, so no name stays after it has gone."""
    directive = re.compile(r"^\.\. auto(?:class|function|exception):: (\w+)$", re.MULTILINE)
    listed = directive.findall(API.read_text())

    assert sorted(listed) == sorted({*celery_batch.__all__} - {"__version__"})
