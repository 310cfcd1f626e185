"""Times in messages are what Celery reads in them."""

from __future__ import annotations

import pytest
from celery.utils.time import maybe_iso8601

from celery_batch.worker.intake.expiry import time_of

TIMES = [
    "2040-01-02T03:04:05.678901+00:00",
    "2040-01-02T03:04:05+00:00",
    "2040-01-02T03:04:05.678901",
    "2040-01-02T03:04:05.678901+05:30",
    "2040-01-02T03:04:05.678901Z",
    "2040-01-02 03:04:05.678901+00:00",
    "2040-01-02T24:00:00.000000+00:00",
    "0001-01-01T00:00:00.000000+00:00",
    "20400102T030405Z",
    "2040-W01-1",
    "2040",
    "",
    None,
]


@pytest.mark.parametrize("text", TIMES)
def test_times_are_celery_s(text: str | None):
    """Whatever the form, it is the same moment, and as far from Greenwich."""
    theirs, ours = maybe_iso8601(text), time_of(text)

    assert theirs == ours
    assert getattr(theirs, "tzinfo", None) is getattr(ours, "tzinfo", None) or (
        theirs.utcoffset() == ours.utcoffset()
    )


@pytest.mark.parametrize(
    "text",
    [
        "2040-02-30T03:04:05.678901+00:00",
        "2040-01-02T03:04:61.678901+00:00",
        "\u0662040-01-02T03:04:05.678901+00:00",
        "tomorrow",
    ],
)
def test_what_is_no_time_is_refused(text: str):
    """What Celery cannot read is an error here too."""
    for read in (maybe_iso8601, time_of):
        with pytest.raises(ValueError, match=r".*"):
            read(text)
