"""The lock and the hooks before a commit."""

from __future__ import annotations

import yaml

from tests.repository.lock import LOCK, ROOT, read


def test_hooks_before_a_commit_have_the_locked_versions() -> None:
    """What a hook installs is what `make check` runs."""
    locked = read((ROOT / LOCK).read_text())
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    pins = {pin for hook in repo["hooks"] for pin in hook["additional_dependencies"]}

    assert {"ruff", "import-linter"} <= read("\n".join(pins)).keys()
    assert sorted(pins) == sorted(f"{name}=={locked[name]}" for name in read("\n".join(pins)))
