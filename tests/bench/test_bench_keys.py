"""What keys and costs take of the CPU is found by comparing batches of the same size."""

from __future__ import annotations

from typing import Any

import pytest

from bench.cases import keys


@pytest.mark.parametrize(
    ("sizes", "extra"), [([10.5, 12.0, 12.0], 5.0), ([10.0, 12.0, 12.0], 5.0 + 100 / 12 - 10.0)]
)
def test_each_drain_is_compared_with_batches_as_large(
    sizes: list[float], extra: float, monkeypatch: pytest.MonkeyPatch
):
    """Its own mean size counts; with a whole number at first there is no other size to go by."""
    plain, left = [0], list(sizes)

    def drain(_stack: Any, name: str, _keys: int, _count: int) -> dict[str, Any]:
        if name == "unkeyed":
            return {"cpu": 100 / plain[-1]}
        size = left.pop(0)
        return {"size": size, "cpu": 100 / size + 5.0}

    monkeypatch.setattr(keys, "_drain", drain)
    monkeypatch.setattr(keys, "_configure", lambda _stack, size: plain.append(size))
    found = keys._compared(None, "keyed", 10, 100, 2)  # type: ignore[arg-type]

    assert pytest.approx(extra) == found["extra"]
