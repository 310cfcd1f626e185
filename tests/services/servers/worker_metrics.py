"""A worker's numbers as Prometheus gets them."""

from __future__ import annotations

from urllib.request import urlopen

__all__ = ["scrape"]


def scrape(url: str) -> dict[str, float]:
    """Return a worker's numbers as it tells them, by name and labels."""
    with urlopen(url, timeout=30) as answer:  # noqa: S310 (ours, on loopback)
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}
