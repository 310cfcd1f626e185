"""The Dockerfile: what a linter says, and what its steps come to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.deploy.files.docker_image import DOCKERFILE, Image, image_of, stages
from tests.deploy.files.page import shown

#: Packages that an image links to in these tests.
THEIRS = {"PIL", "flower", "prometheus_client", "pynvml", "safetensors"}
TARGETS = ["serve", "web", "worker", "worker-gpu"]


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> dict[str, Image]:
    """Each image as a folder, with a Python that has what the image would have."""
    made = {}
    for target in TARGETS:
        root = tmp_path_factory.mktemp(target)
        made[target] = image_of(target, root)
    return made


def run(image: Image, *words: str, **more: str) -> str:
    """Run a command in an image, with its environment and what it is given; return its output."""
    path = image.env["PATH"].replace("/venv", str(image.inside("/venv")))
    env = {**image.env, **more, "PATH": path.replace("$PATH", "/usr/bin:/bin")}
    program = image.inside("/venv/bin") / words[0]
    command = [str(program) if program.exists() else words[0], *words[1:]]
    done = subprocess.run(
        command, env=env, cwd=image.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_linter_has_nothing_to_say(tmp_path):
    """Hadolint finds nothing but what its configuration explains, in the page's Dockerfile too."""
    tool = Path(sys.executable).with_name("hadolint")
    if not tool.exists():
        pytest.skip("hadolint has no wheel for this machine")
    documented = tmp_path / "Dockerfile"
    documented.write_text(shown("docker", "dockerfile"))
    command = [tool, "--config", ROOT / ".hadolint.yaml", DOCKERFILE, documented]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "" == done.stdout


def test_image_gets_what_it_copies():
    """What the Dockerfile copies is in the tree, and not kept from Docker."""
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    copied = [
        source
        for _, steps in stages().values()
        for step in steps
        if step.word == "COPY" and not step.rest.startswith("--from")
        for source in step.words[:-1]
    ]

    assert [] == [source for source in copied if not (ROOT / source).exists()]
    assert [] == [
        source
        for source in copied
        if not any(Path(source).is_relative_to(each) for each in allowed)
    ]


def test_packages_are_built_apart():
    """No stage that becomes an image installs anything; each copies from one that does."""
    for target in TARGETS:
        base, steps = stages()[target]
        (copied,) = [step.words[0] for step in steps if step.rest.startswith("--from=build")]

        assert "runtime" == base
        assert not [step for step in steps if step.word == "RUN"]
        assert copied.startswith("--from=build-")


@pytest.mark.parametrize("target", TARGETS)
def test_image_says_how_it_is_run(target, images):
    """Each has a health check, a command, and a user who is not root."""
    image = images[target]

    assert {"HEALTHCHECK", "CMD", "USER"} <= set(image.settings)
    assert "10001" == image.settings["USER"].rest


@pytest.mark.parametrize(
    ("target", "modules"),
    [
        (
            "web",
            (
                "webapp.fastapi_app",
                "webapp.flask_app",
                "webapp.django_site.wsgi",
                "flower.command",
            ),
        ),
        ("worker", ("safetensors.torch", "PIL.Image", "prometheus_client")),
        ("worker-gpu", ("pynvml",)),
        ("serve", ("examples.serving.imagenet",)),
    ],
)
def test_image_has_what_its_commands_import(target, modules, images):
    """The code runs from the copied folders, on the packages that the image installs."""
    urls = {"CELERY_BROKER_URL": "redis://x", "CELERY_RESULT_BACKEND": "redis://x"}
    image = images[target]
    names = ", ".join(f"{name}.__file__" for name in ("celery_batch", *modules))
    code = f"import celery_batch, {', '.join(modules)}; print({names})"
    ours, *others = run(image, "python", "-c", code, **urls).split()

    assert ours.startswith(str(image.root))
    assert len(modules) == len(others)
    for module, theirs in zip(modules, others, strict=True):
        assert theirs.startswith(str(image.root)) or module.partition(".")[0] in THEIRS


@pytest.mark.parametrize(("target", "package"), [("web", "torch"), ("serve", "torch")])
def test_image_is_no_larger_than_it_must(target, package, images):
    """What loads no model has no torch."""
    code = f"import importlib.util as a; print(a.find_spec({package!r}))"

    assert "None" == run(images[target], "python", "-c", code).strip()


@pytest.mark.parametrize(
    "target",
    [
        *(each for each in TARGETS if each != "worker-gpu"),
        pytest.param("worker-gpu", marks=pytest.mark.thorough("the image of a worker for GPUs")),
    ],
)
def test_image_has_its_commands(target, images):
    """`celery batch` is there in each, and so is the program that it starts by itself."""
    image = images[target]

    assert "backfill" in run(image, "celery", "batch", "--help")
    assert (image.inside("/venv/bin") / image.settings["CMD"].words[0]).exists()
