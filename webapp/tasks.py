"""
The batch tasks that the web apps call, and their limits, from the environment.

``WEBAPP_TASK`` and the others name a task as ``module:attribute``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kombu.utils.imports import symbol_by_name

from celery_batch import prepare

__all__ = [
    "CSP",
    "EXAMPLES",
    "IMAGE_TASK",
    "MAX_BODY",
    "MAX_IMAGE",
    "MAX_INPUTS",
    "NAIVE_TASK",
    "PAGE",
    "TASK",
    "TASKS",
    "TIMEOUT",
    "app",
]


def _task(variable: str, default: str) -> Any:
    name = os.environ.get(variable, default)
    return symbol_by_name(name) if name else None


TASK: Any = _task("WEBAPP_TASK", "workers.infill:infill")

_IS_DEMO = "WEBAPP_TASK" not in os.environ

#: The same model without batches, to compare; None for none.
NAIVE_TASK: Any = _task("WEBAPP_NAIVE_TASK", "workers.infill:infill_one" if _IS_DEMO else "")

#: A task whose items are files of images; None for none.
IMAGE_TASK: Any = _task("WEBAPP_IMAGE_TASK", "workers.colours:colours" if _IS_DEMO else "")

TASKS: list[Any] = [task for task in (TASK, NAIVE_TASK, IMAGE_TASK) if task]

#: Seconds for all inputs of a request.
TIMEOUT = float(os.environ.get("WEBAPP_TIMEOUT", "10"))

#: Most inputs in one request.
MAX_INPUTS = int(os.environ.get("WEBAPP_MAX_INPUTS", "256"))

#: Most bytes of an image.
MAX_IMAGE = 10 * 1024 * 1024

#: Most bytes of a request's body.
MAX_BODY = 2 * MAX_IMAGE

#: Inputs that the page offers.
EXAMPLES = [each for each in os.environ.get("WEBAPP_EXAMPLES", "").split("|") if each]

#: The folder of the page.
PAGE = Path(__file__).parent / "page"

#: The page's Content-Security-Policy.
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

app = TASK.app
for each in {task.app for task in TASKS}:
    prepare(each)
