"""The compose file's services together, as processes of this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.services.compose import in_order, ports_of, read_compose
from tests.services.container import Container
from tests.services.image import Image, image_of
from tests.services.ports import quiet_port

__all__ = ["Containers", "programs_missing"]

#: Ports that are listened on in the networks, and that no file has to name.
_LISTENS = {"redis": [6379], "worker": [9808], "web": [8000]}


class Containers:
    """
    Services of the compose file.

    Args:
        folder: An empty folder, for all that they have.
        names: Which of them.
        overrides: The files that are added to it.
        environ: The variables that the files are read with.
    """

    def __init__(
        self, folder: Path, names: list[str], overrides: list[str], environ: Mapping[str, str]
    ) -> None:
        self.folder = folder
        every = read_compose(*overrides, environ=environ)["services"]
        self._services = {name: every[name] for name in names}
        self.ports = {
            (name, port): quiet_port()
            for name, service in self._services.items()
            for port in {*ports_of(service), *_LISTENS.get(name, [])}
        }
        images: dict[str, Image] = {}
        self.running: dict[str, Container] = {}
        for name in in_order(self._services):
            image = self._image(name, images)
            self.running[name] = Container(name, self._services[name], image, self)

    def __getitem__(self, name: str) -> Container:
        return self.running[name]

    def up(self) -> None:
        """Start what does not run, each when those that it waits for are healthy."""
        for container in self.running.values():
            if not container.is_running:
                for other in container.service.get("depends_on", ()):
                    if other in self.running:
                        self.running[other].wait_until_healthy()
                container.launch()
        for container in self.running.values():
            container.wait_until_healthy()

    def down(self) -> None:
        """End all, each before those that it has waited for, and none by force."""
        for container in reversed(self.running.values()):
            if container.is_running:
                container.stop()

    def close(self) -> None:
        """End all in any case."""
        for container in reversed(self.running.values()):
            container.close()

    def adapted(self, file: Path) -> str:
        """Return a configuration as a machine without Docker's resolver can read it."""
        text = file.read_text()
        if file.name == "prometheus.yml":
            config = yaml.safe_load(text)
            config["global"]["scrape_interval"] = "1s"
            for job in config["scrape_configs"]:
                if found := job.pop("dns_sd_configs", None):
                    targets = [f"{name}:{each['port']}" for each in found for name in each["names"]]
                    job["static_configs"] = [{"targets": targets}]
            return yaml.safe_dump(config)
        if file.name == "compose.conf" and os.geteuid() == 0:
            return f"user root;\n{text}"  # its folder is nobody else's
        return text

    def _image(self, name: str, images: dict[str, Image]) -> Image | None:
        build = self._services[name].get("build")
        if build is None:
            return None
        target = build["target"]
        if target not in images:
            root = self.folder / "images" / target
            root.mkdir(parents=True)
            images[target] = image_of(target, root)
        return images[target]


def programs_missing(*names: str) -> list[str]:
    """Return which of these programs this machine does not have."""
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
    return [name for name in names if shutil.which(name, path=path) is None]
