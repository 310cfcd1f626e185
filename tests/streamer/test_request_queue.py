"""When a streamer's batches leave, on a clock that moves while a model runs or a worker waits."""

from __future__ import annotations

import random
from heapq import heappop, heappush
from math import inf

import pytest

from celery_batch.batching.batch import Batch, Request
from celery_batch.batching.batcher import Batcher
from celery_batch.batching.policy import BatchPolicy
from celery_batch.errors import LoadFailed
from celery_batch.streamer import request_queue as queue_module
from celery_batch.streamer.futures import Answer, AnswerLock
from celery_batch.streamer.request_queue import RequestQueue
from celery_batch.tuning.curve import Curve, Point
from celery_batch.tuning.simulate import Load, simulate

#: Seconds that one batch takes, whatever its size.
RUN = 0.05

#: Seconds that time moves on at least, or sums of small and large ones would stand still.
TICK = 1e-9


class Clients:
    """
    Clients of which each has one request at a time, and asks again when it is answered.

    Args:
        count: How many; the first one comes before the others, which come while its batch runs.
        think: Most seconds from an answer to the client's next request.
        seed: For the seconds that each takes.
    """

    def __init__(self, count, think, seed=0):
        self.now = 0.0
        self._chance = random.Random(seed)  # noqa: S311 (no secret)
        self._think = think
        self._coming = [(0.0, 0)]
        for client in range(1, count):
            heappush(self._coming, (0.01 + self._chance.random() * RUN / 2, client))

    def clock(self):
        """Say what time it is."""
        return self.now

    def answer(self, clients):
        """Have these come again, each after a time of its own."""
        for client in clients:
            heappush(self._coming, (self.now + self._chance.random() * self._think, client))

    def come_until(self, end, add, is_enough=lambda: False):
        """Let time pass, and add each client at its time."""
        while self._coming and self._coming[0][0] <= end and not is_enough():
            self.now, client = heappop(self._coming)
            add(client)
        if not is_enough():
            self.now = end


class Crowd(Clients):
    """
    Clients that come once, at given times.

    Args:
        arrivals: When, in order.
    """

    def __init__(self, arrivals):
        super().__init__(0, 0.0)
        self._coming = [(seconds, client) for client, seconds in enumerate(arrivals)]

    def answer(self, clients):
        """Have no client come again."""


class Condition:
    """What a worker waits on: meanwhile the clients come."""

    def __init__(self, clients, add, late=0.0):
        self._clients = clients
        self._add = add
        self._late = late
        self._is_notified = False

    def notify(self):
        """Wake the worker."""
        self._is_notified = True

    def wait(self, seconds):
        """Wait for a notification, or for so long; and longer, where the worker wakes late."""
        self._is_notified = False
        end = inf if seconds is None else self._clients.now + max(seconds, TICK)
        self._clients.come_until(end, self._add, lambda: self._is_notified)
        self._clients.now += 0.0 if self._is_notified else self._late


def streamed(policy, clients, batches, monkeypatch):
    """Return how many requests each batch of a streamer has."""
    monkeypatch.setattr(queue_module, "monotonic", clients.clock)
    request_queue = RequestQueue(policy, AnswerLock())
    slot = request_queue.slot()

    def add(client):
        request_queue.add([Answer([client], request_queue.answer_lock)], 1)

    slot.condition = Condition(clients, add)
    sizes = []
    for _ in range(batches):
        requests = request_queue.take(slot)
        items = [request.item.items[0] for request in requests]
        clients.come_until(clients.now + RUN, add)
        request_queue.finish(slot, requests, items)
        clients.answer(items)
        sizes.append(len(items))
    return sizes


def simulated(policy, clients, batches):
    """Return the same of a worker, by the rules of `celery_batch.tuning.simulate`."""
    batcher = Batcher(policy)
    sizes = []

    def add(client):
        batcher.add(Request(client, clients.now))

    while len(sizes) < batches:
        decision = batcher.next(clients.now)
        if isinstance(decision, Batch):
            clients.come_until(clients.now + RUN, add)
            if len(decision) > 1:
                batcher.batch_ended(clients.now, decision.rows, decision.urgency)
            clients.answer([request.item for request in decision.requests])
            sizes.append(len(decision))
            continue
        before = len(batcher)
        end = inf if decision.seconds is None else clients.now + max(decision.seconds, TICK)
        clients.come_until(end, add, lambda before=before: len(batcher) > before)
    return sizes


def test_a_crowd_goes_together(monkeypatch):
    """Clients of a slow model do not fall into two batches that take turns."""
    sizes = streamed(BatchPolicy(16, 0.1), Clients(16, think=0.0005), 12, monkeypatch)

    assert [1, 15] + [16] * 10 == sizes


@pytest.mark.parametrize("think", [0.0005, 0.002, 0.01, 0.1])
@pytest.mark.parametrize("size", [4, 16, 64])
def test_batches_are_those_of_the_simulation(size, think, monkeypatch):
    """A streamer and the simulation of `celery batch tune` make the same batches of a load."""
    policy = BatchPolicy(size, 0.02)
    expected = simulated(policy, Clients(16, think, seed=7), 100)

    assert expected == streamed(policy, Clients(16, think, seed=7), 100, monkeypatch)


@pytest.mark.parametrize("rate", [20, 100, 400, 2000])
def test_loads_are_batched_as_they_are_simulated(rate, monkeypatch):
    """Requests that come independently make as many batches as `simulate` counts."""
    policy, load = BatchPolicy(16, 0.02), Load.at(rate, requests=400)
    forecast = simulate(policy, Curve((Point(1, (RUN,)), Point(16, (RUN,)))), load)
    batches = round(400 / forecast.batch_size)

    sizes = streamed(policy, Crowd(load.arrivals), batches, monkeypatch)

    assert 400 == sum(sizes)


def test_a_worker_that_wakes_late_looks_again(monkeypatch):
    """A worker that could not run when silence was over does not take it for silence."""
    clients = Clients(1, think=0.0)
    monkeypatch.setattr(queue_module, "monotonic", clients.clock)
    request_queue = RequestQueue(BatchPolicy(16, 0.1), AnswerLock())
    slot = request_queue.slot()

    def add(client):
        request_queue.add([Answer([client], request_queue.answer_lock)], 1)

    add(0)
    clients._coming = [(0.0525, 1)]
    slot.condition = Condition(clients, add, late=0.05)

    assert [0, 1] == [request.item.items[0] for request in request_queue.take(slot)]


def test_requests_cancelled_before_a_suspension_are_not_searched_after_it(monkeypatch):
    """The queue is not searched for cancelled requests that left it when it was suspended."""
    request_queue = RequestQueue(BatchPolicy(4, 0.1), AnswerLock())
    answers = [Answer([each], request_queue.answer_lock) for each in range(40)]
    request_queue.add(answers, 40)
    assert all(answer.cancel() for answer in answers)
    request_queue.suspend(LoadFailed("no weights"))
    request_queue.resume()
    scans = []
    remove = request_queue._remove_cancelled
    monkeypatch.setattr(request_queue, "_remove_cancelled", lambda: scans.append(1) or remove())
    for each in range(100):
        request_queue.add([Answer([each], request_queue.answer_lock)], 1)

    assert 0 == len(scans)


def padded_queue(*, warm: bool = True, padded: bool = True, call_cost: float = 4.0) -> RequestQueue:
    """Return a queue that has seen ten calls, each of which costs so much beside its rows."""
    policy = BatchPolicy(8, 0.0, max_batch_cost=800.0, padded=padded)
    request_queue = RequestQueue(policy, AnswerLock())
    slot = request_queue.slot()
    for n in range(1, 12):
        add(request_queue, *[10.0] * (n % 8 + 1))
        requests = request_queue.take(slot)
        assert requests is not None
        cost = 10.0 * len(requests)
        request_queue.finish(slot, requests, [None] * len(requests), (cost, call_cost + cost))
        slot.is_warm = warm
    return request_queue


def add(request_queue: RequestQueue, *costs: float) -> None:
    """Add a request for each cost."""
    for cost in costs:
        answer = Answer([cost], request_queue.answer_lock)
        answer.cost = cost
        request_queue.add([answer], 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 4]),
        ({"call_cost": 2000.0}, [5]),
        ({"warm": False}, [5]),
        ({"padded": False}, [5]),
    ],
    ids=["learnt", "calls are dear", "the first call of each process", "no padding"],
)
def test_a_batch_is_cut_where_two_calls_cost_less(options, expected):
    """As in a worker, once some batches have run."""
    request_queue = padded_queue(**options)
    slot, sizes = request_queue.slot(), []
    add(request_queue, 90.0, 4.0, 4.0, 4.0, 4.0)
    while sum(sizes) < 5:
        requests = request_queue.take(slot)
        sizes.append(len(requests))
        request_queue.finish(slot, requests, [None] * len(requests))

    assert expected == sizes
