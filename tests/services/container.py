"""
A service of the compose file as a process of this machine.

It runs its own command, or its image's, with its own environment and no other, and is asked by
its own health check; an image of ours is made of the Dockerfile's steps, the others' programs
are Debian's.
What differs is where things are: a container's names and ports become free ports on loopback,
and its paths become paths in a folder of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import find_redis_server
from tests.services.compose import ROOT
from tests.services.image import Image
from tests.services.nginx import find_nginx

if TYPE_CHECKING:
    from tests.services.containers import Containers

__all__ = ["Container"]

#: Programs that an image starts by itself, with the words that make them stay in a folder.
_PROGRAMS: Mapping[str, Callable[[Path], list[str]]] = {
    "nginx": lambda root: [find_nginx(), "-p", str(root), "-c", f"{root}/etc/nginx/nginx.conf"],
    "prometheus": lambda _root: ["prometheus"],
}

#: Seconds until a service is healthy; one loads a model, on a machine that does more besides.
_HEALTHY_WITHIN = 120.0

#: Seconds; some checks are processes of Python.
_BETWEEN_CHECKS = 0.5


class Container:
    """
    One service.

    Args:
        name: Its name.
        service: What the compose file says of it.
        image: What it runs in, if that is ours.
        place: All of them.
    """

    def __init__(
        self, name: str, service: dict[str, Any], image: Image | None, place: Containers
    ) -> None:
        self.name = name
        self.service = service
        self.image = image
        self.root = place.folder / name
        self._place = place
        self._managed: ManagedProcess | None = None
        self._is_healthy = False
        self.root.mkdir()
        self._paths = self._mount()

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._managed is not None and self._managed.exit_code is None

    @property
    def pid(self) -> int:
        """The process that keeps it."""
        assert self._managed is not None
        return self._managed.pid

    @property
    def log(self) -> Path:
        """What it has said."""
        return self.root / f"{self.name}.log"

    @property
    def grace(self) -> float:
        """Seconds that it has to end by itself."""
        return float(self.service.get("stop_grace_period", "10s").removesuffix("s"))

    def port(self, port: int) -> int:
        """Return where one of its ports is on this machine."""
        return self._place.ports[self.name, port]

    def start(self) -> None:
        """Start it, and return when its health check is content."""
        self.launch()
        self.wait_until_healthy()

    def launch(self) -> None:
        """Start it."""
        self._is_healthy = False
        self._managed = ManagedProcess(self._command(), self.log, env=self._environment())

    def wait_until_healthy(self) -> None:
        """Return when its health check is content, which is asked no more than twice a second."""
        if self._is_healthy or self._managed is None:
            return
        asked = float("-inf")
        reason = "it was not asked yet"

        def why_not() -> str:
            nonlocal asked, reason
            if time.monotonic() - asked > _BETWEEN_CHECKS:
                reason = self.why_not_healthy()
                asked = time.monotonic()
            return reason

        wait_until(why_not, [self._managed], what=self.name, timeout=_HEALTHY_WITHIN)
        self._is_healthy = True

    def why_not_healthy(self) -> str:
        """Ask its own health check."""
        command = [self.translated(word) for word in self._health_check()]
        done = subprocess.run(
            command, env=self._environment(), cwd=self._folder, capture_output=True, check=False
        )
        return (done.stdout + done.stderr).decode() or "unhealthy" if done.returncode else ""

    def stop(self) -> float:
        """End it as Docker does, and return how many seconds that took."""
        assert self._managed is not None
        began = time.monotonic()
        number = signal.Signals[self.service.get("stop_signal", "SIGTERM")]
        for process in psutil.Process(self._managed.pid).children():
            process.send_signal(number)
        has_ended = self._managed.wait(self.grace)
        took = time.monotonic() - began
        self._managed.stop(0)
        assert has_ended, f"{self.name} had to be killed\n{self._managed.tail()}"
        return took

    def close(self) -> None:
        """End it in any case."""
        if self._managed is not None:
            self._managed.stop()

    def translated(self, text: str) -> str:
        """Return a text of the container's with names, ports and paths of this machine."""
        for (name, inside), outside in self._place.ports.items():
            text = re.sub(rf"(?<![\w.-]){name}:{inside}\b", f"127.0.0.1:{outside}", text)
        for (name, inside), outside in self._place.ports.items():
            if name == self.name:
                text = re.sub(rf"(?<![\d.]){inside}(?![\d.])", str(outside), text)
        text = re.sub(r"(?<![\d.])0\.0\.0\.0(?![\d./])", "127.0.0.1", text)
        paths = "|".join(sorted(self._paths, key=len, reverse=True))
        found = rf"(?<![\w./}}-])({paths})(?=[/\s\"';:,)]|$)"
        return re.sub(found, lambda match: str(self._paths[match[1]]), text)

    def _health_check(self) -> list[str]:
        """Return the words of its health check, or of its image's."""
        if "healthcheck" in self.service:
            kind, *words = self.service["healthcheck"]["test"]
            assert kind == "CMD"
            return words
        return self._of_image("HEALTHCHECK")

    def _of_image(self, word: str) -> list[str]:
        assert self.image is not None
        return self.image.settings[word].command

    @property
    def _folder(self) -> Path:
        return self.image.folder if self.image else self.root

    def _command(self) -> list[str]:
        command = self.service.get("command") or self._of_image("CMD")
        words = shlex.split(command) if isinstance(command, str) else command
        words = [self.translated(word) for word in words]
        if program := _PROGRAMS.get(self.name):
            own = [] if words == [self.name] else words
            return self._at_home([*program(self.root), *own])
        return self._at_home(words)

    def _at_home(self, words: list[str]) -> list[str]:
        return ["sh", "-c", 'cd "$0" && exec "$@"', str(self._folder), *words]

    def _environment(self) -> dict[str, str]:
        ours = dict(self.image.env) if self.image else {}
        ours |= {name: str(value) for name, value in self.service.get("environment", {}).items()}
        programs = [str(Path(find_redis_server()).parent), os.environ["PATH"], "/usr/sbin"]
        if self.image:
            programs.insert(0, str(self.image.inside("/venv/bin")))
        ours = {name: self.translated(value) for name, value in ours.items()}
        return {**ours, "PATH": os.pathsep.join(programs)}

    def _mount(self) -> dict[str, Path]:
        """Make the folders that the container has beside its image; return where they are."""
        inside = [each.partition(":")[0] for each in self.service.get("tmpfs", ())]
        volumes = [each.split(":") for each in self.service.get("volumes", ())]
        inside += [target for _, target, *_ in volumes]
        paths = {path: self.root / path.lstrip("/") for path in ["/tmp", *inside]}  # noqa: S108 (the container's)
        self._paths = paths
        for path, where in paths.items():
            (where.parent if Path(path).suffix else where).mkdir(parents=True, exist_ok=True)
        paths["/dev/stdout"] = self.root / "access.log"
        for source, target, *_ in volumes:
            if source.startswith("./"):
                self._lay(ROOT / source, paths[target])
        return paths

    def _lay(self, source: Path, target: Path) -> None:
        for file in [source] if source.is_file() else sorted(source.rglob("*")):
            if file.is_file():
                into = target / file.relative_to(source) if source.is_dir() else target
                into.parent.mkdir(parents=True, exist_ok=True)
                into.write_text(self.translated(self._place.adapted(file)))
