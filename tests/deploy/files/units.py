"""systemd's units, read as far as ours need it, and their commands as systemd would run them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Unit"]

UNITS = Path(__file__).parents[3] / "deploy" / "systemd"

#: Where the units say that the program is installed.
HOME = "/srv/celery-batch"


class Unit:
    """
    One unit.

    Args:
        name: Its file's name.
        instance: What stands behind the @, of a template.
    """

    def __init__(self, name: str, instance: str = "") -> None:
        self.instance = instance
        self.settings: dict[str, dict[str, list[str]]] = {}
        section: dict[str, list[str]] = {}
        for line in (UNITS / name).read_text().splitlines():
            if found := re.fullmatch(r"\[(\w+)\]", line):
                section = self.settings.setdefault(found[1], {})
            elif line and not line.startswith("#"):
                key, _, value = line.partition("=")
                section.setdefault(key, []).append(value)

    def all(self, key: str) -> list[str]:
        """Return every value of a key of the service."""
        return self.settings["Service"].get(key, [])

    def one(self, key: str) -> str:
        """Return the value of a key of the service, which is there once."""
        (value,) = self.all(key)
        return value

    def command(self, key: str, environ: Mapping[str, str]) -> list[str]:
        """
        Return the words of a command, as systemd gives them to the program.

        Args:
            key: ``ExecStart``, say.
            environ: The service's environment.
        """
        return [self._filled(word, environ) for word in shlex.split(self.one(key))]

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """
        Return what the unit adds to what its files hold.

        Args:
            given: What is in the files.
        """
        pairs = [pair.partition("=") for line in self.all("Environment") for pair in line.split()]
        return {**{name: self._filled(value, {}) for name, _, value in pairs}, **given}

    def _filled(self, word: str, environ: Mapping[str, str]) -> str:
        def fill(found: re.Match[str]) -> str:
            if found[0] == "$$":
                return "$"
            return environ[found[1]] if found[1] else specifiers[found[0]]

        specifiers = {"%%": "%", "%i": self.instance, "%S": "/var/lib"}
        return re.sub(r"\$\$|\$\{(\w+)\}|%.", fill, word)
