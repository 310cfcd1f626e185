"""Requests made from the OpenAPI document, good and bad, and answers held against it."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks
from web_door import KINDS

#: Not errors of ours: a client that waits for a millionth of a second hears these.
TOO_LATE = {503, 504}


def no_error_of_ours(_context, response, _case):
    """Hold that a request is never answered with what nobody has foreseen."""
    assert response.status_code < 500 or response.status_code in TOO_LATE


CHECKS = [
    no_error_of_ours,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.missing_required_header,
    checks.unsupported_method,
]

#: Too much of something is refused with 413, which the tool does not expect by itself.
CONFIG = {"checks": {"negative_data_rejection": {"expected-statuses": ["4xx", *TOO_LATE]}}}

#: Requests to each operation in each mode.
FEW, MANY = 3, 100


def asked(doors, count):
    """Send requests to all operations; return the statuses of each door, and problems."""
    urls = {kind: f"http://127.0.0.1:{doors(kind).port}" for kind in KINDS}
    config = schemathesis.Config.from_dict(CONFIG)
    schema = schemathesis.openapi.from_url(f"{urls[KINDS[0]]}/openapi.json", config=config)
    statuses, problems = {kind: Counter() for kind in KINDS}, []

    def answered(case):
        """Send one request to each door, and hold the answers against the document."""
        for kind, url in urls.items():
            response = case.call(base_url=url, timeout=30)
            statuses[kind][response.status_code] += 1
            case.validate_response(response, checks=CHECKS)

    # What is told there has no end for a long while.
    for result in schema.exclude(path="/live").get_all_operations():
        operation = result.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            made = given(case=operation.as_strategy(generation_mode=mode))(answered)
            limits = settings(
                max_examples=count,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            try:
                limits(made)()
            except Unsatisfiable:
                pass  # there is no wrong way to ask for this
            except FailureGroup as problem:
                told = "; ".join(str(each) for each in problem.exceptions)
                problems.append(f"{operation.label}, {mode}: {told}")
    return statuses, problems


def test_answers_are_as_documented(doors):
    """No request is answered with an error of ours, or with what the document does not tell."""
    statuses, problems = asked(doors, FEW)

    assert [] == problems
    assert all({200, 400, 404} <= seen.keys() for seen in statuses.values())


@pytest.mark.thorough("thousands of generated web requests")
@pytest.mark.timeout(3600)
def test_answers_are_as_documented_thousands_of_times(doors):
    """Neither do thousands of requests, other ones each time, find anything."""
    count = int(os.environ.get("SCHEMA_EXAMPLES", MANY))
    statuses, problems = asked(doors, count)
    for kind, seen in statuses.items():
        print(kind, seen.total(), dict(seen))  # noqa: T201 (the counts are the point)

    assert [] == problems
