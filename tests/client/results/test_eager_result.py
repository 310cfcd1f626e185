"""What a task returns that ran at once can be awaited like any other result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from celery import Celery
from celery.result import EagerResult

from celery_batch import BatchTask


@pytest.fixture
def eager() -> Any:
    """A batch task that runs where it is called."""
    app = Celery("eager", set_as_current=False)
    app.conf.task_always_eager = True

    def half(number: list[Any]) -> list[Any]:
        return [ValueError("odd") if each % 2 else each // 2 for each in number]

    return app.task(base=BatchTask, name="half")(half)


async def awaited(result: Any) -> Any:
    """Await a result."""
    return await result


@pytest.mark.parametrize("way", ["delay", "apply"])
def test_eager_result_is_a_result(eager: Any, way: str):
    """Value and error come by get, await and future."""
    call = eager.delay if way == "delay" else lambda number: eager.apply((number,))
    good, bad = call(4), call(3)

    assert isinstance(good, EagerResult)
    assert [2, 2, 2] == [good.get(), asyncio.run(awaited(good)), good.future().result()]
    assert "odd" == str(bad.future().exception())
    with pytest.raises(ValueError, match="odd"):
        asyncio.run(awaited(bad))
