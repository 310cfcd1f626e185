"""Equal rows of a task are recognised, and the options that need that are checked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery

from celery_batch import BatchTask, ConfigurationError, Model
from celery_batch.serialization.row_digest import row_digest_of

NAME = "digests.rows"


def make(model: type[Model] | None = None, **options: Any) -> Any:
    """Return a task with these options."""
    app = Celery("digests")
    options["shared"] = False  # else another test's app would have it as well
    if model is not None:
        return model.as_task(app, name=NAME, **options)

    @app.task(base=BatchTask, name=NAME, **options)
    def rows(text, unit="m"):
        return [*zip(text, unit, strict=True)]

    app.finalize()
    return rows


def digest(row: tuple[Any, ...], **options: Any) -> bytes | None:
    """Return the digest of a row of a task with these options."""
    found = row_digest_of(make(**options))
    assert found is not None
    return found.of(row)


def test_equal_rows_have_equal_digests():
    """In any process, whatever the order of a dict's items."""
    assert digest(({"a": 1, "b": 2}, "m"), dedupe=True) == digest(
        ({"b": 2, "a": 1}, "m"), cache_ttl=60
    )
    assert 24 == len(digest(("", ""), dedupe=True) or b"")


@pytest.mark.parametrize("other", [("a", "n"), ("am", ""), ("a",), (["a"], "m"), (b"a", "m")])
def test_unlike_rows_have_unlike_digests(other: tuple[Any, ...]):
    """Also those whose texts are the same when they are joined."""
    assert digest(("a", "m"), dedupe=True) != digest(other, dedupe=True)


def test_another_version_has_other_digests():
    """The task's own version counts before the model's."""

    class Versioned(Model):
        version = 3

        def predict(self, text, unit):
            return [*zip(text, unit, strict=True)]

    row = ("a", "m")
    found = [
        digest(row, cache_ttl=60),
        digest(row, cache_ttl=60, version="3"),
        digest(row, cache_ttl=60, model=Versioned),
        digest(row, cache_ttl=60, model=Versioned, version=4),
    ]

    assert 4 == len(set(found))
    assert found[2] == digest(row, cache_ttl=60, version=3)


def test_a_value_of_another_type_equals_no_other():
    """It is computed each time."""
    assert digest((datetime.now(UTC), "m"), dedupe=True) is None


def test_a_task_that_reuses_nothing_has_no_digests():
    """It costs its items nothing."""
    assert row_digest_of(make()) is None


def test_an_eager_call_computes():
    """It needs no Redis, and compares nothing."""
    task = make(dedupe=True, cache_ttl=60)
    task.app.conf.task_always_eager = True

    assert [("a", "m"), ("a", "m")] == [task.delay("a").get(), task.delay("a").get()]
    assert [("a", "m"), ("a", "m")] == task.run_batch(["a", "a"], ["m", "m"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dedupe": 1}, "digests.rows.dedupe: must be True or False, got 1"),
        ({"cache_ttl": 0}, "digests.rows.cache_ttl: must be seconds above 0"),
        ({"cache_ttl": True}, "digests.rows.cache_ttl: must be seconds above 0"),
        ({"cache_ttl": float("inf")}, "digests.rows.cache_ttl: must be seconds above 0"),
        ({"version": "2"}, "digests.rows.version: has no effect without cache_ttl"),
        ({"version": 1.5, "cache_ttl": 60}, "digests.rows: the version of a model must be"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], problem: str):
    """When the app is finalised, with the task's name."""
    with pytest.raises(ConfigurationError, match=problem):
        make(**options)
