"""The route that answers pictures."""

from __future__ import annotations

from celery import Task

from celery_batch.config import Settings as Limits
from celery_batch.errors import ConfigurationError
from webapp.messages import Answer
from webapp.meters import Meters
from webapp.predictions import Predictions
from webapp.routes import Route, Visit
from webapp.settings import Settings
from webapp.uploads import largest_upload, pictures

__all__ = ["Pictures"]

#: Bytes of a message beside its body; generously.
_HEADERS = 4096


class Pictures:
    """
    Takes uploads, has each picture answered by a task of its own.

    Args:
        predictions: Sends, waits and answers.
        task: Called with a picture's file.
        meters: Told how much is uploaded.
        settings: The limits.

    Raises:
        ConfigurationError: Workers would refuse the largest picture.
    """

    def __init__(
        self, predictions: Predictions, task: Task, meters: Meters, settings: Settings
    ) -> None:
        self._predictions = predictions
        self._task = task
        self._meters = meters
        self._settings = settings
        _check_room(task, settings.max_picture_bytes)

    def routes(self) -> list[Route]:
        """Return this route."""
        limit = largest_upload(self._settings)
        return [Route("POST", "/pictures", self.answer, limit, waits=True)]

    async def answer(self, visit: Visit) -> Answer:
        """Answer a form of pictures, or ``{"pictures": [...]}``, as `predict` does inputs."""
        # Megabytes take milliseconds to look through: not in an event loop.
        question = await visit.way.call(pictures, visit.ask, self._settings)
        self._meters.uploaded(sum(map(len, question.inputs)))
        return await self._predictions.outputs(visit, self._task, question)


def _check_room(task: Task, size: int) -> None:
    """See that workers let the largest picture in, of which Redis makes a third more."""
    most = Limits.of(task.app).max_message_size
    needed = -(-size * 4 // 3) + _HEADERS
    if most is not None and needed > most:
        raise ConfigurationError(
            f"WEBAPP_MAX_PICTURE_BYTES: {size} bytes make a message of {needed}, and workers"
            f" refuse those of more than batch_max_message_size ({most}): lower the one, or"
            f" raise the other, for the workers as well"
        )
