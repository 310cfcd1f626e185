"""The page of errors names every public error with its HTTP status."""

from __future__ import annotations

import re
from pathlib import Path

import amqp.exceptions
import celery.exceptions
import kombu.exceptions

import celery_batch
from celery_batch import errors
from celery_batch.web.errors import ERRORS, http_error

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text()

_ROWS = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (\d{3}) \|", PAGE, re.MULTILINE)
STATUSES = [(name.strip("`"), int(status)) for names, status in _ROWS for name in names.split(", ")]


def _of_ours() -> dict[str, type[errors.BatchError]]:
    found = (getattr(celery_batch, name) for name in celery_batch.__all__)
    classes = [each for each in found if isinstance(each, type)]
    return {each.__name__: each for each in classes if issubclass(each, errors.BatchError)}


def _of_celery() -> dict[str, type[Exception]]:
    celery_errors = {
        **vars(amqp.exceptions),
        **vars(kombu.exceptions),
        **vars(celery.exceptions),
    }
    return {name: celery_errors[name] for name, _ in STATUSES if name not in _of_ours()}


def test_every_public_error_is_there_once_with_its_status():
    """Each error that can be imported from celery_batch, and no other of ours, is in one table."""
    documented = sorted(each for each in STATUSES if each[0] not in _of_celery())

    assert sorted((name, each.status_code) for name, each in _of_ours().items()) == documented


def test_every_error_of_the_package_is_public():
    """No error that is raised for users has to be imported from an inner module."""
    assert set(errors.__all__) <= set(celery_batch.__all__)


def test_celerys_errors_have_the_status_of_the_web_integrations():
    """The table of Celery's errors has those that the integrations answer, with their statuses."""
    statuses = {name: status for name, status in STATUSES if name in _of_celery()}
    answered = {each.__name__ for each in ERRORS} - {"BatchError", "ConnectionError", "TaskFailed"}

    assert answered == statuses.keys()
    assert {name: http_error(each("")).status for name, each in _of_celery().items()} == statuses
