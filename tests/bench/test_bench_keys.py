"""What keys and costs take of the CPU is found by comparing batches of the same size."""

from __future__ import annotations

from typing import Any

import pytest

from bench.cases import keys
from bench.tables import Effort


@pytest.mark.parametrize("size", [1.0, 10.5, 32.0])
def test_each_drain_is_compared_with_batches_as_large(size: float, monkeypatch: pytest.MonkeyPatch):
    """Drains without keys and cost in the next smaller and the next larger batches are the rule."""
    plain = [0]

    def drain(_stack: Any, name: str, _keys: int, _count: int) -> dict[str, Any]:
        if name == "unkeyed":
            return {"cpu": 100 / plain[-1]}
        return {"size": size, "cpu": 100 / size + 5.0}

    monkeypatch.setattr(keys, "_drain", drain)
    monkeypatch.setattr(keys, "_configure", lambda _stack, size: plain.append(size))
    extra = keys._extra(None, "keyed", 10, Effort(rounds=0))  # type: ignore[arg-type]

    assert pytest.approx(5.0) == extra
    assert 32 == plain[-1]
