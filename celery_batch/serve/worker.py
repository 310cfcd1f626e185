"""What ``celery -A celery_batch.serve.worker worker`` serves: the handle of its configuration."""

from __future__ import annotations

import os

from celery_batch.runtime.devices import VISIBLE
from celery_batch.serve.app import config_of_process, make_app, task_options
from celery_batch.serve.handle_model import HandleModel
from celery_batch.serve.processes import DEVICE

__all__ = ["app", "predict"]

_config = config_of_process()
_device = os.environ.get(DEVICE)


class Served(HandleModel):
    """The configured handle."""

    handle_name = _config.handle


# Errors call a model by its class.
Served.__name__ = Served.__qualname__ = _config.handle.rpartition(":")[2]

app = make_app(_config)
if _device:
    app.conf.batch_devices = (_device,)
if _device == "cpu":  # the handle must not find a GPU by itself
    os.environ[VISIBLE] = ""
predict = Served.as_task(app, name=_config.task_name, **task_options(_config))
