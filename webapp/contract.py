"""
The web contract: what every door answers, whichever framework it is made of.

A door turns HTTP into one call here and the `Answer` back into HTTP, nothing else.

* A 2xx answer has the route's own shape: ``{"outputs": [...]}`` for `predict`, a list
  for `stream` and `naive`.
* An input that fails alone leaves the others their outputs.  In ``outputs`` its place
  is null, and ``errors`` has its error under its index; in a list its place is taken by
  ``{"error": {"type", "message"}}``.
* Any other answer is ``{"error": {"type", "message"}}``.  So it is when every input
  fails: then with the gravest of their statuses, and with ``errors`` as above.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

from celery import Task

from celery_batch.errors import ConfigurationError
from webapp.courier import Courier
from webapp.errors import Answer, BrokerUnreachable, NoWorker, Refused, refusal
from webapp.inputs import body_too_large, form_inputs, json_inputs
from webapp.outcomes import Failure, Outcome
from webapp.readiness import LISTEN, Prober
from webapp.settings import Settings, prepare

__all__ = ["Contract"]

P = ParamSpec("P")


def _answering(view: Callable[Concatenate[Contract, P], Answer]) -> Callable[..., Answer]:
    """Make a refusal that is raised anywhere below an answer like any other."""

    @functools.wraps(view)
    def answer(self: Contract, *args: P.args, **kwargs: P.kwargs) -> Answer:
        try:
            return view(self, *args, **kwargs)
        except Refused as refused:
            return refused.answer()

    return answer


class Contract:
    """
    Validates, sends, waits, and says what came of it.

    Args:
        batched: The task behind `predict` and `stream`.
        single: The task behind `naive`.
        settings: The limits.

    Raises:
        ConfigurationError: Answers of these tasks cannot be awaited.
    """

    def __init__(self, batched: Task, single: Task, settings: Settings) -> None:
        app = batched.app
        if single.app is not app:
            raise ConfigurationError(f"{batched.name} and {single.name} have different apps")
        prepare(app)
        self.settings = settings
        self._batched = batched
        self._single = single
        self._prober = Prober(app)
        self._courier = Courier(app, self._prober)

    @_answering
    def predict(self, body: bytes, content_type: str | None) -> Answer:
        """
        Answer ``{"inputs": [...]}``.

        Args:
            body: The request's body.
            content_type: The header's value.
        """
        inputs = json_inputs(body, content_type, self.settings)
        outcomes = self._outcomes(self._batched, inputs)
        failures = _failures(outcomes)
        if len(failures) == len(outcomes):
            return _all_failed(failures)
        answer: dict[str, Any] = {"outputs": [outcome.output for outcome in outcomes]}
        return Answer(body=answer | ({"errors": _errors(failures)} if failures else {}))

    @_answering
    def stream(self, values: Sequence[str], content_type: str | None, size: int) -> Answer:
        """
        Answer a form, its inputs batched with everybody's.

        Args:
            values: The values of the form's field ``s``.
            content_type: The header's value.
            size: Bytes in the request's body.
        """
        inputs = form_inputs(values, content_type, size, self.settings)
        return self._list(self._batched, inputs)

    @_answering
    def naive(self, values: Sequence[str], content_type: str | None, size: int) -> Answer:
        """
        Answer a form, each of its inputs by itself.

        Args:
            values: The values of the form's field ``s``.
            content_type: The header's value.
            size: Bytes in the request's body.
        """
        inputs = form_inputs(values, content_type, size, self.settings)
        return self._list(self._single, inputs)

    @_answering
    def ready(self) -> Answer:
        """Say whether a worker with a warm model answers for each of the tasks."""
        tasks = (self._batched.name, self._single.name)
        census = self._prober.ask(tasks, within=LISTEN)
        if not census.reached:
            raise BrokerUnreachable("the broker does not answer")
        if cold := census.cold(tasks):
            raise NoWorker(f"no worker with a warm model answers for {' and '.join(cold)}")
        workers = {task: list(census.warm[task]) for task in tasks}
        return Answer(body={"status": "ready", "workers": workers})

    def health(self) -> Answer:
        """Say that this process lives, and nothing about others."""
        return Answer(body={"status": "ok"})

    def body_too_large(self) -> Answer:
        """Return the answer to a body that a door has stopped reading."""
        return body_too_large(self.settings).answer()

    def _list(self, task: Task, inputs: Sequence[str]) -> Answer:
        outcomes = self._outcomes(task, inputs)
        failures = _failures(outcomes)
        if len(failures) == len(outcomes):
            return _all_failed(failures)
        return Answer(
            body=[
                {"error": failures[index].body()} if index in failures else outcome.output
                for index, outcome in enumerate(outcomes)
            ]
        )

    def _outcomes(self, task: Task, inputs: Sequence[str]) -> list[Outcome]:
        return self._courier.outcomes(task, inputs, self.settings.timeout)


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
