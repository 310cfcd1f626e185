"""The Celery app of a served handle, the same for its workers and its web server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery

from celery_batch.errors import ConfigurationError
from celery_batch.serve.config import ServeConfig
from celery_batch.task import BatchTask

__all__ = ["CONFIG", "LARGEST_BODY", "config_of_process", "make_app", "make_task"]

#: The environment variable that names the file with this process's `ServeConfig`.
CONFIG = "CELERY_BATCH_SERVE"

#: Most bytes that a client may post.
LARGEST_BODY = 16 << 20

#: Seconds after its soft time limit at which a batch's process is killed, model and all.
_LAST_MOMENT = 5.0


def config_of_process() -> ServeConfig:
    """Read the configuration of this process."""
    path = os.environ.get(CONFIG)
    if not path:
        raise ConfigurationError(f"{CONFIG} is not set: start this by `celery batch serve`")
    return ServeConfig.from_json(Path(path).read_text(encoding="utf-8"))


def make_app(config: ServeConfig) -> Celery:
    """Make the app; nothing is connected yet."""
    app = Celery("serve", broker=config.broker, backend=config.broker, set_as_current=False)
    app.conf.update(
        task_default_queue=config.queue,
        # A message holds the body twice encoded: JSON in JSON, and base64 around it.
        batch_max_message_size=2 * LARGEST_BODY,
        # No client fetches a result later.
        result_expires=max(60.0, 2 * config.time_limit),
        broker_connection_retry_on_startup=True,
        # The log has what a handle prints as it is, and not as a warning.
        worker_redirect_stdouts=False,
    )
    return app


def make_task(app: Celery, config: ServeConfig) -> Any:
    """Make the task that answers one envelope, for clients, which do not import the handle."""

    def predict(_data: list[Any]) -> list[Any]:
        raise ConfigurationError(f"{config.task_name} runs in the workers of `celery batch serve`")

    return app.task(base=BatchTask, name=config.task_name, **task_options(config))(predict)


def task_options(config: ServeConfig) -> dict[str, Any]:
    """Return the options of the task behind ``/predict``."""
    return {
        "max_batch_size": config.max_batch_size,
        "max_wait": config.max_wait,
        "max_queue": config.max_queue,
        "outputs": "lists",  # which HTTP's JSON has
        "expires": config.time_limit,
        "soft_time_limit": config.time_limit,
        "time_limit": config.time_limit + _LAST_MOMENT,
    }
