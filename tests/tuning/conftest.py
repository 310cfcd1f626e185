"""Fewer requests in a simulation than a user's proposal has: each test makes several."""

from __future__ import annotations

import pytest

from celery_batch.tuning.simulate import Load

#: Requests in a simulation; 12 of them are above the 99th percentile.
_REQUESTS = 1200


@pytest.fixture
def as_many_as_users_have() -> None:
    """Simulate as many as a user's proposal does."""


@pytest.fixture(autouse=True)
def _few_requests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate so many unless a test asks for as many as users have."""
    if "as_many_as_users_have" not in request.fixturenames:
        monkeypatch.setattr(Load.at.__func__, "__defaults__", (_REQUESTS, ()))
