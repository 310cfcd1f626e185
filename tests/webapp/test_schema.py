"""Requests made from FastAPI's OpenAPI document, good and bad, and the answers held against it."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

#: What a client hears that waits for too short a time, or asks for too much.
FORESEEN = {503, 504}


def no_server_error(_context, response, _case):
    """Hold that the server foresees all that it answers."""
    assert response.status_code < 500 or response.status_code in FORESEEN


CHECKS = (
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)

CONFIG = {"checks": {"negative_data_rejection": {"expected-statuses": ["4xx", *FORESEEN]}}}


@pytest.fixture
def schemathesis():
    """Schemathesis, which takes more than a second to import: no other test waits for it."""
    import schemathesis  # noqa: PLC0415
    import schemathesis.specs.openapi.checks  # noqa: PLC0415

    return schemathesis


@pytest.mark.parametrize(
    "count",
    [5, pytest.param(300, marks=pytest.mark.thorough("thousands of generated web requests"))],
)
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("workers")
def test_answers_are_as_documented(open_site, schemathesis, count):
    """No request to any operation has an answer that the document does not tell of."""
    site = open_site("fastapi")
    site.until("/readyz")
    config = schemathesis.Config.from_dict(CONFIG)
    schema = schemathesis.openapi.from_url(f"{site.url}/openapi.json", config=config)
    known = schemathesis.specs.openapi.checks
    checks = [no_server_error, *(getattr(known, name) for name in CHECKS)]
    statuses, problems = set(), []

    def ask(case):
        """Send one request, and hold its answer against the document."""
        response = case.call(base_url=site.url, timeout=30)
        statuses.add(response.status_code)
        # A form has no types: a list that is sent as a field is two fields.
        excluded = [known.negative_data_rejection] if "form" in str(case.media_type) else []
        case.validate_response(response, checks=checks, excluded_checks=excluded)

    # The states of a call that is unknown have no end.
    for result in schema.exclude(path="/events/{task_id}").get_all_operations():
        operation = result.ok()
        for mode in schemathesis.GenerationMode:
            made = given(case=operation.as_strategy(generation_mode=mode))(ask)
            limits = settings(
                max_examples=int(os.environ.get("SCHEMA_EXAMPLES", count)),
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            try:
                limits(made)()
            except Unsatisfiable:
                pass  # there is no wrong way to ask for this
            except schemathesis.core.failures.FailureGroup as problem:
                told = "; ".join(str(each) for each in problem.exceptions)
                problems.append(f"{operation.label}, {mode}: {told}")

    assert [] == problems
    assert {200, 202, 422} <= statuses
