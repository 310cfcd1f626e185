"""Revoking: before receipt, in line, while it runs; one request and never its neighbours."""

from __future__ import annotations

import pytest
from celery.exceptions import TaskRevokedError

from celery_batch.client.revoke import revoke_soon
from tests.integration.features.test_stamping import Customer
from tests.services.place import Place, eventually
from tests.services.shop import Worker

EVERY_POOL = ("prefork", "solo", "threads")


def revoke(place: Place, *results, worker: Worker | None = None, **options) -> None:
    """Revoke and return when the worker, the shared one unless given, has heard."""
    place.app.control.revoke(
        [each.id for each in results],
        reply=True,
        timeout=10,
        limit=1,
        destination=[(worker or place.worker).name],
        **options,
    )


@pytest.mark.pools(*EVERY_POOL)
def test_revoked_before_it_is_received(place: Place):
    """A request whose id was revoked before it came never reaches the model."""
    unsent = place.echo.s("unwanted")
    unsent.freeze()
    revoke(place, unsent)
    result, neighbour = unsent.delay(), place.echo.delay("wanted")

    assert "wanted" == neighbour.get(timeout=30)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)
    assert ["wanted"] == place.items("echo")


def test_revoked_in_line_by_id(place: Place):
    """A request that waits in the worker is left out of its batch."""
    gate = place.close_gate()
    unwanted, wanted = [place.echo.delay(x) for x in ("unwanted", "wanted")]
    place.wait_for_buffered("f.echo", 2)
    revoke(place, unwanted)
    place.open_gate(gate)

    assert "wanted" == wanted.get(timeout=30)
    with pytest.raises(TaskRevokedError):
        unwanted.get(timeout=30)
    assert ["wanted"] == place.items("echo")


def test_revoked_in_line_by_stamped_header(place: Place):
    """Every waiting request with a stamp is left out, whatever its id."""
    name = place.unique("customer")
    gate = place.close_gate()
    results = [_stamped(place, name, 1), _stamped(place, name, 2), place.echo.delay("other")]
    place.wait_for_buffered("f.echo", 3)
    place.app.control.revoke_by_stamped_headers(
        {"customer": [name]}, reply=True, timeout=60.0, limit=1, destination=[place.worker.name]
    )
    place.open_gate(gate)

    assert "other" == results[2].get(timeout=30)
    for result in results[:2]:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=30)
    assert ["other"] == place.items("echo")


def _stamped(place: Place, customer: str, x: int):
    sig = place.echo.s(x)
    sig.stamp(Customer(customer))
    return sig.delay()


def test_revoked_before_receipt_by_stamped_header(place: Place):
    """A stamp that was revoked keeps out what arrives later."""
    name = place.unique("customer")
    place.app.control.revoke_by_stamped_headers(
        {"customer": [name]}, reply=True, timeout=60.0, limit=1, destination=[place.worker.name]
    )
    result, other = _stamped(place, name, 1), place.echo.delay("other")

    assert "other" == other.get(timeout=30)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)


def test_revoked_while_it_waits_for_its_eta(place: Place):
    """A request that waits for its time in the worker is left out as well."""
    later = place.echo.apply_async(("later",), countdown=0.8)
    held = place.app.control.inspect([place.worker.name], timeout=60.0, limit=1)
    eventually(lambda: held.scheduled()[place.worker.name], "a scheduled request")
    revoke(place, later)

    with pytest.raises(TaskRevokedError):
        later.get(timeout=30)
    place.wait_for_nobody()
    assert [] == place.items("echo")


def test_revoked_in_a_batch_that_waits_for_a_process(place: Place):
    """A batch that is formed loses who is revoked before a pool process is free for it."""
    queue = place.unique("two")
    gates = [place.unique("gate") for _ in range(4)]
    routes = {"task_routes": {"f.hold": {"queue": queue}}}
    with place.another("-c", "2", queue=queue, conf=routes) as worker:
        results = [place.hold.apply_async((gate,), queue=queue) for gate in gates]
        place.wait_at(gates[0])
        place.wait_at(gates[1])
        eventually(lambda: worker.status()["f.hold"]["running"] == 4, "two batches that wait")
        revoke(place, results[3], worker=worker)
        for gate in gates:
            place.open_gate(gate)

        assert gates[:3] == place.get(results[:3])
        with pytest.raises(TaskRevokedError):
            results[3].get(timeout=30)
    assert gates[3] not in place.items("hold")


@pytest.mark.pools("threads")
def test_revoked_in_a_batch_that_waits_for_a_thread(place: Place):
    """On a pool of threads a batch loses who is revoked before a thread takes it."""
    first, second, third = [place.unique("gate") for _ in range(3)]
    results = [place.hold.delay(gate) for gate in (first, second)]
    place.wait_at(first)
    eventually(lambda: place.worker.status()["f.hold"]["running"] == 2, "a batch that waits")
    revoke(place, results[1])
    place.open_gate(second)
    place.open_gate(first)

    assert first == results[0].get(timeout=30)
    with pytest.raises(TaskRevokedError):
        results[1].get(timeout=30)
    place.open_gate(third)
    assert third == place.hold.delay(third).get(timeout=30)
    assert [first, third] == place.items("hold")


def test_revoked_behind_the_running_batch_in_the_process_runs(place: Place):
    """What the pool process has been handed runs, as in Celery; its caller is told REVOKED."""
    first, second = [place.unique("gate") for _ in range(2)]
    results = [place.hold.delay(gate) for gate in (first, second)]
    place.wait_at(first)
    eventually(lambda: place.worker.status()["f.hold"]["running"] == 2, "a batch behind it")
    revoke(place, results[1])
    place.open_gate(second)
    place.open_gate(first)

    assert first == results[0].get(timeout=30)
    with pytest.raises(TaskRevokedError):
        results[1].get(timeout=30)
    # It runs after that batch, whose gate is forgotten when the test ends.
    assert second == place.hold.delay(second).get(timeout=30)
    assert [first, second, second] == place.items("hold")


@pytest.mark.pools("prefork", "threads")
@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
def test_terminate_ends_that_request_and_never_its_neighbours(place: Place, signal: str):
    """A running request ends as REVOKED at once; its batch goes on, and so does the process."""
    before = place.who.delay(0).get(timeout=30)[1]
    gate = place.unique("gate")
    results = [place.hold_many.delay(gate, n) for n in range(4)]
    place.wait_at(gate)
    running = place.items("hold_many")
    victim = running[-1]
    revoke(place, results[victim], terminate=True, signal=signal)
    with pytest.raises(TaskRevokedError):
        results[victim].get(timeout=30)
    for _ in results:
        place.open_gate(gate)
    answers = place.get(results[:victim] + results[victim + 1 :])

    assert [n for n in range(4) if n != victim] == answers
    assert "REVOKED" == results[victim].state
    assert before == place.who.delay(0).get(timeout=30)[1]


def test_terminate_of_a_request_in_line_is_a_plain_revoke(place: Place):
    """``terminate=True`` for a request that waits leaves it out, and touches nobody."""
    gate = place.close_gate()
    unwanted, wanted = [place.echo.delay(x) for x in ("unwanted", "wanted")]
    place.wait_for_buffered("f.echo", 2)
    revoke(place, unwanted, terminate=True)
    place.open_gate(gate)

    assert "wanted" == wanted.get(timeout=30)
    with pytest.raises(TaskRevokedError):
        unwanted.get(timeout=30)
    assert ["wanted"] == place.items("echo")


def test_revoked_soon_in_line_and_still_queued(place: Place):
    """What is called back in passing never reaches the model, unless the pool has it already."""
    gate = place.close_gate()
    first = [place.echo.delay(number) for number in range(16)]  # the batch that is next
    wanted, *unwanted = [place.echo.delay(number) for number in range(16, 150)]
    place.wait_for_buffered("f.echo", 1)
    for result in unwanted:
        revoke_soon(place.app, [result.id])
    inspect = place.app.control.inspect([place.worker.name], timeout=60.0, limit=1)
    eventually(
        lambda: {each.id for each in unwanted} <= {*inspect.revoked()[place.worker.name]},
        "word of the revokes",
    )
    place.open_gate(gate)

    assert [*range(17)] == [each.get(timeout=30) for each in (*first, wanted)]
    for result in unwanted:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=30)
    assert [*range(17)] == sorted(place.items("echo"))
