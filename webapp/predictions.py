"""
The routes that answer with the model's outputs.

* A 2xx answer has the route's own shape: ``{"outputs": [...]}`` for `predict`, a list
  for `stream` and `naive`.
* An input that fails alone leaves the others their outputs.  In ``outputs`` its place
  is null, and ``errors`` has its error under its index; in a list its place is taken by
  ``{"error": {"type", "message"}}``.
* Any other answer is ``{"error": {"type", "message"}}``.  So it is when every input
  fails: then with the gravest of their statuses, and with ``errors`` as above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from celery import Task

from webapp.courier import Courier, Unfinished
from webapp.deadlines import deadline_of
from webapp.errors import refusal
from webapp.inputs import Question, form_inputs, json_inputs
from webapp.messages import Answer
from webapp.outcomes import Failure, Outcome
from webapp.routes import Route, Visit
from webapp.settings import Settings
from webapp.tasks import sent_answer
from webapp.tickets import Tickets

__all__ = ["Predictions"]


class Predictions:
    """
    Validates, sends, waits, and says what came of it.

    Args:
        courier: Sends and waits.
        tasks: The task behind `predict` and `stream`, and that behind `naive`.
        tickets: For tasks that go on after the deadline.
        settings: The limits.
    """

    def __init__(
        self, courier: Courier, tasks: tuple[Task, Task], tickets: Tickets, settings: Settings
    ) -> None:
        self._courier = courier
        self._batched, self._single = tasks
        self._tickets = tickets
        self._settings = settings

    def routes(self) -> list[Route]:
        """Return these routes."""
        most = self._settings.max_body_bytes
        return [
            Route("POST", "/predict", self.predict, most, waits=True),
            Route("POST", "/stream", self.stream, most, waits=True),
            Route("POST", "/naive", self.naive, most, waits=True),
        ]

    async def predict(self, visit: Visit) -> Answer:
        """Answer ``{"inputs": [...]}``."""
        question = json_inputs(visit.ask, self._settings)
        return await self.outputs(visit, self._batched, question)

    async def outputs(self, visit: Visit, task: Task, question: Question) -> Answer:
        """
        Answer with ``{"outputs": [...]}``.

        Args:
            visit: Who asks, and until when.
            task: Called once for each input.
            question: The inputs.
        """
        shape = partial(_document, explain=question.explain)
        return await self._answered(visit, task, question, shape)

    async def stream(self, visit: Visit) -> Answer:
        """Answer a form, its inputs batched with everybody's."""
        return await self._list(visit, self._batched)

    async def naive(self, visit: Visit) -> Answer:
        """Answer a form, each of its inputs by itself."""
        return await self._list(visit, self._single)

    async def _list(self, visit: Visit, task: Task) -> Answer:
        question = form_inputs(visit.ask, self._settings)
        return await self._answered(visit, task, question, _listed)

    async def _answered(
        self, visit: Visit, task: Task, question: Question, shape: Callable[..., Any]
    ) -> Answer:
        try:
            outcomes = await self._outcomes(visit, task, question)
        except Unfinished as unfinished:
            return self._later(visit, unfinished)
        failures = _failures(outcomes)
        if len(failures) == len(outcomes):
            return _all_failed(failures)
        return Answer(body=shape(outcomes, failures))

    async def _outcomes(self, visit: Visit, task: Task, question: Question) -> list[Outcome]:
        time_given = deadline_of(visit.ask, self._settings.timeout)
        return await self._courier.outcomes(visit, task, question, time_given)

    def _later(self, visit: Visit, unfinished: Unfinished) -> Answer:
        return sent_answer([self._tickets.write(each) for each in unfinished.ids], visit.root)


def _document(
    outcomes: Sequence[Outcome], failures: dict[int, Failure], *, explain: bool
) -> dict[str, Any]:
    body: dict[str, Any] = {"outputs": [outcome.output for outcome in outcomes]}
    if failures:
        body["errors"] = _errors(failures)
    if explain:
        body["batches"] = [outcome.batch for outcome in outcomes]
    return body


def _listed(outcomes: Sequence[Outcome], failures: dict[int, Failure]) -> list[Any]:
    return [
        {"error": failures[index].body()} if index in failures else outcome.output
        for index, outcome in enumerate(outcomes)
    ]


def _failures(outcomes: Sequence[Outcome]) -> dict[int, Failure]:
    return {
        index: outcome.failure
        for index, outcome in enumerate(outcomes)
        if outcome.failure is not None
    }


def _errors(failures: dict[int, Failure]) -> dict[str, dict[str, str]]:
    return {str(index): failure.body() for index, failure in failures.items()}


def _all_failed(failures: dict[int, Failure]) -> Answer:
    gravest = max(failures.values(), key=lambda failure: failure.http)
    message = gravest.message
    if len(failures) > 1:
        message = f"none of the {len(failures)} inputs has an output: {message}"
    return refusal(gravest.http, gravest.kind, message, errors=_errors(failures))
