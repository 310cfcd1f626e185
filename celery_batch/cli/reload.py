"""Restarts the workers of `celery batch serve --reload` when their Python files change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from celery_batch.cli.deployment import Deployment
from celery_batch.errors import ConfigurationError

__all__ = ["Reloader", "source_of"]


def source_of(handle: str, folders: Sequence[str]) -> Path:
    """
    Return the file of a handle's module, which is not imported.

    Args:
        handle: As in the configuration.
        folders: Where modules are looked for.

    Raises:
        ConfigurationError: There is no such module, or it has no file.
    """
    module = handle.rpartition(":")[0] or "handle"
    origin, places = None, list(folders)
    for part in module.split("."):
        spec = PathFinder.find_spec(part, places)
        if spec is None:
            raise ConfigurationError(f"Handle: no module {module} for {handle}")
        origin, places = spec.origin, list(spec.submodule_search_locations or ())
    if origin is None:
        raise ConfigurationError(f"--reload: {module} is a folder without an __init__.py")
    return Path(origin)


class Reloader:
    """
    Looks at the Python files beside a handle's module, and restarts the workers.

    Args:
        deployment: Running.
        source: The module's file.
    """

    def __init__(self, deployment: Deployment, source: Path) -> None:
        self._deployment = deployment
        self._folder = source.parent
        self._times = dict(self._look())
        self._is_loading = False

    def step(self) -> str:
        """Look once; return what the user is told of it, if anything."""
        times = dict(self._look())
        changed = sorted(path.name for path, _ in times.items() ^ self._times.items())
        if changed:
            self._times, self._is_loading = times, True
            self._deployment.restart_workers()
            return f"{changed[0]} has changed: the workers have been restarted"
        if not self._is_loading:
            return ""
        failure = self._deployment.why_crashing()
        if failure or not self._deployment.why_not_loaded():
            self._is_loading = False
            return failure or f"{self._deployment.config.handle} is ready again"
        return ""

    def _look(self) -> Iterator[tuple[Path, int]]:
        for path in self._folder.glob("*.py"):
            try:
                yield path, path.stat().st_mtime_ns
            except FileNotFoundError:  # it is being written anew
                continue
