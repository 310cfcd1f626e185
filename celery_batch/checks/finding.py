"""The result of a check: its level, one sentence, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Level", "ok", "problem", "warning"]


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a checkup."""

    level: Level  # a *problem* breaks something, a *warning* costs something
    says: str  # what was found, in one sentence
    fix: str = ""  # what to do about it; empty where nothing is wrong


def ok(says: str) -> Finding:
    """Return that all is well."""
    return Finding(Level.OK, says)


def warning(says: str, fix: str) -> Finding:
    """Return what costs something: speed, memory, or requests on a bad day."""
    return Finding(Level.WARNING, says, fix)


def problem(says: str, fix: str) -> Finding:
    """Return what breaks something."""
    return Finding(Level.PROBLEM, says, fix)
