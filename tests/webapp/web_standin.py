"""The contract of the stand-in service, for any door: ``WEBAPP_CONTRACT=web_standin:contract``."""

from __future__ import annotations

import os

from web_standin_tasks import answer, answer_one, app, look

from celery_batch import BatchTask
from webapp.contract import Contract
from webapp.settings import Settings


def contract() -> Contract:
    """Return it, with settings from the environment."""
    return Contract(answer, answer_one, Settings.from_environ(os.environ), pictured=look)


def half_served() -> Contract:
    """Return one whose second task no worker knows."""

    @app.task(base=BatchTask, name="standin.nobodys")
    def nobodys(text):
        """Answer nobody."""

    return Contract(answer, nobodys, Settings.from_environ(os.environ))
