"""
Every way to ask a task: one item, many, a chunk, in a coroutine, more than fit into memory.

    celery batch redis                          # first shell: prints lines for the other two
    celery -A workers worker --concurrency=1    # second shell
    python -m examples.asking                   # third shell
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

#: Seconds until an answer is given up.
TIMEOUT = 60


def one(task: Any, items: Iterable[str]) -> list[str]:
    """Ask for one item after another: each waits for the one before."""
    return [task.delay(item).get(timeout=TIMEOUT) for item in items]


def many(task: Any, items: Iterable[str]) -> list[str]:
    """Send all in one write; each has a task and a result of its own."""
    return [result.get(timeout=TIMEOUT) for result in task.delay_many(list(items))]


def chunk(task: Any, items: Iterable[str]) -> list[str]:
    """Send all as one task, whose result is a list: the cheapest of all."""
    answers: list[str] = task.delay_rows(list(items)).get(timeout=TIMEOUT)
    return answers


def in_coroutine(task: Any, items: Iterable[str]) -> list[str]:
    """Send and wait without blocking the event loop."""

    async def ask(item: str) -> str:
        answer: str = await (await task.adelay(item))
        return answer

    async def ask_all() -> list[str]:
        return await asyncio.gather(*map(ask, items))

    return asyncio.run(ask_all())


def backfill(task: Any, items: Iterable[str]) -> list[str]:
    """Take items from an iterable as answers come back: there may be millions."""
    return [answered.output for answered in task.backfill(items)]


WAYS: dict[str, Callable[[Any, Iterable[str]], list[str]]] = {
    "delay": one,
    "delay_many": many,
    "delay_rows": chunk,
    "adelay": in_coroutine,
    "backfill": backfill,
}


def main(task: Any = infill, items: Iterable[str] = SENTENCES) -> dict[str, list[str]]:
    """
    Ask in every way, and return the answers by way.

    Args:
        task: A batch task of one parameter.
        items: What it is asked.
    """
    return {name: ask(task, items) for name, ask in WAYS.items()}


if __name__ == "__main__":
    console = Console(markup=False, highlight=False)
    for name, answers in main().items():
        console.print(f"{name}: {', '.join(answers)}")
