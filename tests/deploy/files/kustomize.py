"""As much of kustomize as our manifests ask for: what `kubectl apply -k` would send."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

__all__ = ["KUBERNETES", "built"]

KUBERNETES = Path(__file__).parents[3] / "deploy" / "kubernetes"

_KNOWN = {"apiVersion", "kind", "namespace", "labels", "resources", "images", "patches"}
_ALONE = {"Namespace"}


def built(folder: Path) -> list[dict[str, Any]]:
    """
    Return the objects of a kustomization.

    Args:
        folder: Where its ``kustomization.yaml`` lies.
    """
    said = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(said) <= _KNOWN, set(said) - _KNOWN
    objects: list[dict[str, Any]] = []
    for name in said["resources"]:
        path = (folder / name).resolve()
        if path.is_dir():
            objects += built(path)
        else:
            objects += yaml.safe_load_all(path.read_text())
    objects = copy.deepcopy(objects)  # YAML's anchors are not shared by what comes of them
    for each in objects:
        if "namespace" in said and each["kind"] not in _ALONE:
            each["metadata"]["namespace"] = said["namespace"]
        for label in said.get("labels", ()):
            each["metadata"].setdefault("labels", {}).update(label["pairs"])
    for image in said.get("images", ()):
        _rename(objects, image)
    for patch in said.get("patches", ()):
        _patch(objects, patch)
    return objects


def _rename(value: Any, image: dict[str, str]) -> None:
    if isinstance(value, list):
        for each in value:
            _rename(each, image)
    elif isinstance(value, dict):
        if value.get("image") == image["name"]:
            value["image"] = f"{image['newName']}:{image['newTag']}"
        for each in value.values():
            _rename(each, image)


def _patch(objects: list[dict[str, Any]], patch: dict[str, Any]) -> None:
    target = patch["target"]
    (found,) = [
        each
        for each in objects
        if (each["kind"], each["metadata"]["name"]) == (target["kind"], target["name"])
    ]
    for step in yaml.safe_load(patch["patch"]):
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]
        ]
        place: Any = found
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        assert step["op"] == "add" or last in place, step
        place[last] = step["value"]
