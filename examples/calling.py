"""
Every way to call a batch task: one item, many, a chunk, in a coroutine, more than fit into memory.

    celery batch redis                          # first shell: prints lines for the other two
    celery -A workers worker --concurrency=1    # second shell
    python -m examples.calling                   # third shell
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console

from workers.infill import infill

__all__ = ["main"]

SENTENCES = (
    "twinkle twinkle [MASK] star.",
    "Happy birthday to [MASK].",
    "the answer to life, the [MASK], and everything.",
)

#: Most seconds to wait for a result.
TIMEOUT = 60


def one(task: Any, items: Iterable[str]) -> list[str]:
    """Call the task for one item after another: each call waits for the result of the last."""
    return [task.delay(item).get(timeout=TIMEOUT) for item in items]


def many(task: Any, items: Iterable[str]) -> list[str]:
    """Send all in one write; each item is a task with its own result."""
    return [result.get(timeout=TIMEOUT) for result in task.delay_many(list(items))]


def chunk(task: Any, items: Iterable[str]) -> list[str]:
    """Send all as one task, whose result is a list: the cheapest way."""
    outputs: list[str] = task.delay_rows(list(items)).get(timeout=TIMEOUT)
    return outputs


def in_coroutine(task: Any, items: Iterable[str]) -> list[str]:
    """Send and wait without blocking the event loop."""

    async def call(item: str) -> str:
        output: str = await (await task.adelay(item))
        return output

    async def call_all() -> list[str]:
        return await asyncio.gather(*map(call, items))

    return asyncio.run(call_all())


def backfill(task: Any, items: Iterable[str]) -> list[str]:
    """Read items from an iterable as outputs arrive: there may be millions."""
    return [answer.output for answer in task.backfill(items)]


WAYS: dict[str, Callable[[Any, Iterable[str]], list[str]]] = {
    "delay": one,
    "delay_many": many,
    "delay_rows": chunk,
    "adelay": in_coroutine,
    "backfill": backfill,
}


def main(task: Any = infill, items: Iterable[str] = SENTENCES) -> dict[str, list[str]]:
    """
    Call the task in every way, and return the outputs by way.

    Args:
        task: A batch task of one parameter.
        items: Its inputs.
    """
    return {name: call(task, items) for name, call in WAYS.items()}


if __name__ == "__main__":
    console = Console(markup=False, highlight=False)
    for name, outputs in main().items():
        console.print(f"{name}: {', '.join(outputs)}")
