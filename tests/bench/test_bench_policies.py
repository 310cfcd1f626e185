"""The rules that the bench compares in virtual time."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.policies.loads import LOADS, seconds
from bench.policies.rules import RULES, SortedWindow, TokenBudget
from celery_batch.batching.batch import Request
from celery_batch.tuning.simulate import run


def rate(rule, load, count=5000):
    """Return how many requests of a backlog a rule serves in a second."""
    requests = list(LOADS[load](1e9, count, 1))
    *_, (_, began, duration) = run(RULES[rule](), requests, seconds)
    return count / (began + duration)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("rule", RULES)
def test_each_request_runs_once(rule, load):
    """No rule loses a request or runs it twice, nor before it has come."""
    requests = list(LOADS[load](1500.0, 2000, 2))
    runs = [
        (each, began >= each.arrived)
        for batch, began, _ in run(RULES[rule](), requests, seconds)
        for each in batch.requests
    ]

    assert Counter((each, True) for each in requests) == Counter(runs)


@pytest.mark.parametrize("load", LOADS)
def test_ours_serves_a_backlog_as_fast_as_a_sorted_window(load):
    """On a backlog our rule reaches at least 0.95 of the rate of infinity's."""
    ours, infinity = rate("ours, 2,048 tokens", load), rate("infinity, 32 rows", load)

    assert 0.95 * infinity <= ours


def test_sorted_window():
    """Eight batches' worth are sorted by length; what came meanwhile is in the next window."""
    rule = SortedWindow()
    for length in (*range(300, 44, -1), 1, 2):
        rule.add(Request(length, 0.0))
    batches = [rule.next(0.0).items for _ in range(9)]

    assert [list(range(at, at + 32)) for at in range(45, 301, 32)] == batches[:8]
    assert [1, 2] == batches[8]


def test_token_budget():
    """A batch ends before the longest times the texts is above the budget; one may be."""
    rule = TokenBudget()
    for length in (3000, 1000, 10, 1000):
        rule.add(Request(length, 0.0))

    assert [[3000], [1000, 10], [1000]] == [rule.next(0.0).items for _ in range(3)]
