"""The tables of the reference are those of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from celery_batch import BatchTask, protocol, task_options
from celery_batch.config import OPTIONS
from celery_batch.defaults import SETTINGS
from celery_batch.runtime.model import Model
from celery_batch.worker.intake.dead_letters import _REASON
from tests.docs import tables

SETTINGS_PAGE = (tables.REFERENCE / "settings.md").read_text()


def _defaults_of(kind: str) -> Iterator[tuple[str, str]]:
    """Yield each name in the page's tables of one kind with its default, without code marks."""
    for table in re.findall(rf"<!-- table: {kind} .*?<!-- end", SETTINGS_PAGE, re.DOTALL):
        for line in table.splitlines()[3:-1]:
            found = re.match(r"\| (\w+) \| .*?, default (.*?)<br>", line.replace("`", ""))
            assert found is not None, line
            yield found[1], found[2]


def test_tables_are_those_of_the_code():
    """`make tables` would change no page."""
    assert [] == list(tables.stale())


def test_every_setting_is_documented_with_its_default():
    """The page lists each setting of ours once with its default, and no other."""
    documented = list(_defaults_of("settings"))

    assert sorted((name, repr(value)) for name, value in SETTINGS.items()) == sorted(documented)


def test_every_task_option_is_documented_with_its_default():
    """The page lists each option that a task accepts once, with its default and setting."""
    documented = dict(_defaults_of("options"))
    accepted = task_options._OF_TASKS | task_options._OF_MODELS | {"outputs"}
    accepted -= {"examples", "collate", "uncollate"}  # a model has these as methods
    settings = {name: OPTIONS.get(name, f"batch_{name}") for name in accepted}
    defaults = {
        name: f"{SETTINGS[settings[name]]!r} ({settings[name]})"
        if settings[name] in SETTINGS
        else repr(getattr(BatchTask, name))
        for name in accepted
    }

    assert defaults == documented
    assert len(documented) == len(list(_defaults_of("options")))


def test_options_of_a_model_are_declared_by_it():
    """An option of which the page says that a model may have it is an attribute of `Model`."""
    said = {name: text for name, (_, text) in tables.task_options().items()}
    of_models = {
        name for name, text in said.items() if "`Model` may" in text or "a `Model`" in text
    }

    assert of_models == {name for name in said if hasattr(Model, name)}


def test_every_control_command_is_documented():
    """The page has each remote control command of ours once in its table, and a section for it."""
    page = (tables.REFERENCE / "control-commands.md").read_text()
    listed = re.findall(r"^\| \[`(\w+)`\]\(#\w+\) \|", page, re.MULTILINE)

    assert sorted(tables.commands_of_ours()) == sorted(listed)
    assert listed == re.findall(r"^## `(\w+)`$", page, re.MULTILINE)


def test_every_metric_that_dashboard_and_alerts_use_is_documented():
    """The page has each of our metrics that deploy/ queries, a series of a histogram included."""
    page = (tables.REFERENCE / "metrics.md").read_text()
    documented = set(re.findall(r"^\| `(celery_batch_\w+)` \|", page, re.MULTILINE))
    files = [tables.DEPLOY / "prometheus" / "alerts.yml", *tables.DEPLOY.rglob("*.json")]
    used = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for file in files
        for name in re.findall(r"\bcelery_batch_[a-z_]+\b", file.read_text())
    }

    assert len(used) > 10
    assert set() == used - documented


def test_every_extra_is_documented():
    """The page lists each extra of the wheel, and no other."""
    page = (tables.REFERENCE / "compatibility.md").read_text()
    listed = re.search(r"^\| extra \|.*?\n\n", page, re.MULTILINE | re.DOTALL)
    assert listed is not None
    names = re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\|([^|]*)", listed[0], re.MULTILINE)))

    assert sorted(tables._project()["optional-dependencies"]) == sorted(names)


def test_every_environment_variable_is_documented():
    """The page has each variable that the package reads, by the ways in which its modules do."""
    page = (tables.REFERENCE / "environment.md").read_text()
    documented = set(re.findall(r"`([A-Z][A-Z_]+)`", page))
    source = "\n".join(path.read_text() for path in sorted(tables.PACKAGE.rglob("*.py")))
    name = '"([A-Z][A-Z_]+)"'
    read = {
        *re.findall(rf"(?:environ|inherited)(?:\.\w+\(|\[){name}", source),
        *re.findall(rf"^(?:\w*VARIABLE|VISIBLE|_MULTIPROCESS) = {name}", source, re.MULTILINE),
    }

    assert {"CELERY_BATCH_METRICS", "CUDA_VISIBLE_DEVICES", "REDIS_SERVER"} < read
    assert set() == read - documented


def test_every_header_is_documented():
    """The page has each header of messages that the package defines, and no other."""
    page = (tables.REFERENCE / "environment.md").read_text()
    of_calls = {value for name, value in vars(protocol).items() if name in tables.HEADERS}

    assert {*of_calls, _REASON} == set(re.findall(r"^\| `(batch_\w+)`", page, re.MULTILINE))
    assert {value for value in vars(protocol).values() if str(value).startswith("batch_")} == {
        *of_calls,
        protocol.QUIETLY,  # an argument of a revoke
    }


def test_releases_of_python_are_documented():
    """The page names the releases of Python that the package says it is for."""
    page = (tables.REFERENCE / "compatibility.md").read_text()
    said = re.findall(r"Python :: (3\.\d+)", " ".join(tables._project()["classifiers"]))

    assert f"CPython {', '.join(said)} " in page
