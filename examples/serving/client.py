"""
Post a picture many times and show how fast the answers come.

    python -m examples.serving.client dog.jpg --url http://localhost:9876/predict

Exits with 1 if a request has failed.
"""

from __future__ import annotations

import asyncio
import base64
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Tally", "main", "post_many"]

#: Seconds after which an unanswered request has failed.
_TIMEOUT = 60.0
_MOST_ERRORS_SHOWN = 5


@dataclass(slots=True)
class Tally:
    """
    What became of the requests.

    Args:
        latencies: Seconds that each answer took.
        errors: How often each kind of failure came.
        seconds: How long it all took.
    """

    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def quantile(self, share: float) -> float:
        """
        Return the seconds within which this share of the answers came; nan of none.

        Args:
            share: From 0 to 1.
        """
        if not self.latencies:
            return math.nan
        rank = math.ceil(share * len(self.latencies))
        return sorted(self.latencies)[max(rank, 1) - 1]

    def lines(self) -> Iterator[str]:
        """Say it to people, a line at a time."""
        failed = self.errors.total()
        rate = len(self.latencies) / self.seconds if self.seconds else math.nan
        yield f"{len(self.latencies)} answered, {failed} failed, in {self.seconds:.2f} s"
        yield f"{rate:.1f} answers per second"
        parts = (f"p{share} {1000 * self.quantile(share / 100):.1f}" for share in (50, 95, 99))
        yield f"latency in ms: {', '.join(parts)}, slowest {1000 * self.quantile(1):.1f}"
        for error, count in self.errors.most_common(_MOST_ERRORS_SHOWN):
            yield f"failed {count} times: {error}"


async def post_many(
    url: str,
    picture: bytes,
    *,
    count: int,
    in_flight: int,
    on_answer: Callable[[], object] = lambda: None,
) -> Tally:
    """
    Post a picture again and again, always so many requests at once.

    Args:
        url: Where to.
        picture: The picture's file.
        count: How many times.
        in_flight: How many requests wait for their answers at any time.
        on_answer: Called after each request, failed or not.
    """
    body = {"img": base64.b64encode(picture).decode()}
    tally, turns, began = Tally(), iter(range(count)), time.perf_counter()
    limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
    async with httpx.AsyncClient(timeout=_TIMEOUT, limits=limits) as client:

        async def keep_posting() -> None:
            for _ in turns:
                await _post(client, url, body, tally)
                on_answer()

        await asyncio.gather(*(keep_posting() for _ in range(in_flight)))
    tally.seconds = time.perf_counter() - began
    return tally


async def _post(client: httpx.AsyncClient, url: str, body: object, tally: Tally) -> None:
    began = time.perf_counter()
    try:
        answer = await client.post(url, json=body)
        answer.raise_for_status()
        answer.json()["task_info"]["result"]
    except httpx.HTTPStatusError as error:
        tally.errors[f"{error.response.status_code} {error.response.text[:200]}"] += 1
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        tally.errors[f"{type(error).__name__}: {error}"] += 1
    else:
        tally.latencies.append(time.perf_counter() - began)


@click.command(help="Post a picture many times and show how fast the answers come.")
@click.argument("picture", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--url", default="http://localhost:9876/predict", show_default=True)
@click.option("--count", default=1000, show_default=True, type=click.IntRange(min=1))
@click.option("--in-flight", default=32, show_default=True, type=click.IntRange(min=1))
def main(picture: Path, url: str, count: int, in_flight: int) -> None:
    """
    Run the program.

    Args:
        picture: The picture's file.
        url: Where to post it.
        count: How many times.
        in_flight: How many requests wait for their answers at any time.
    """
    console = Console()
    columns = (TextColumn("posted"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("posted", total=count)
        tally = asyncio.run(
            post_many(
                url,
                picture.read_bytes(),
                count=count,
                in_flight=in_flight,
                on_answer=lambda: progress.advance(bar),
            )
        )
    for line in tally.lines():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    sys.exit(bool(tally.errors))


if __name__ == "__main__":
    main()
