"""Revoking: before receipt, in line, while it runs; one request and never its neighbours."""

from __future__ import annotations

import pytest
from celery.exceptions import TaskRevokedError

from celery_batch.client.revoke import revoke_soon
from tests.integration.features.test_stamping import Customer
from tests.services.setup import Worker
from tests.services.shared_setup import SharedSetup, eventually

EVERY_POOL = ("prefork", "solo", "threads")


def revoke(shared: SharedSetup, *results, worker: Worker | None = None, **options) -> None:
    """Revoke and return when the worker, the shared one unless given, has heard."""
    shared.app.control.revoke(
        [each.id for each in results],
        reply=True,
        timeout=60,
        limit=1,
        destination=[(worker or shared.worker).name],
        **options,
    )


@pytest.mark.pools(*EVERY_POOL)
def test_revoked_before_it_is_received(shared: SharedSetup):
    """A request whose id was revoked before it came never reaches the model."""
    unsent = shared.echo.s("unwanted")
    unsent.freeze()
    revoke(shared, unsent)
    result, neighbour = unsent.delay(), shared.echo.delay("wanted")

    assert "wanted" == neighbour.get(timeout=30)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)
    assert ["wanted"] == shared.items("echo")


def test_revoked_in_line_by_id(shared: SharedSetup):
    """A request that waits in the worker is left out of its batch."""
    gate = shared.close_gate()
    unwanted, wanted = [shared.echo.delay(x) for x in ("unwanted", "wanted")]
    shared.wait_for_buffered("f.echo", 2)
    revoke(shared, unwanted)
    shared.open_gate(gate)

    assert "wanted" == wanted.get(timeout=30)
    with pytest.raises(TaskRevokedError):
        unwanted.get(timeout=30)
    assert ["wanted"] == shared.items("echo")


def test_revoked_in_line_by_stamped_header(shared: SharedSetup):
    """Every waiting request with a stamp is left out, whatever its id."""
    name = shared.unique("customer")
    gate = shared.close_gate()
    results = [_stamped(shared, name, 1), _stamped(shared, name, 2), shared.echo.delay("other")]
    shared.wait_for_buffered("f.echo", 3)
    shared.app.control.revoke_by_stamped_headers(
        {"customer": [name]}, reply=True, timeout=60.0, limit=1, destination=[shared.worker.name]
    )
    shared.open_gate(gate)

    assert "other" == results[2].get(timeout=30)
    for result in results[:2]:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=30)
    assert ["other"] == shared.items("echo")


def _stamped(shared: SharedSetup, customer: str, x: int):
    sig = shared.echo.s(x)
    sig.stamp(Customer(customer))
    return sig.delay()


def test_revoked_before_receipt_by_stamped_header(shared: SharedSetup):
    """A stamp that was revoked keeps out what arrives later."""
    name = shared.unique("customer")
    shared.app.control.revoke_by_stamped_headers(
        {"customer": [name]}, reply=True, timeout=60.0, limit=1, destination=[shared.worker.name]
    )
    result, other = _stamped(shared, name, 1), shared.echo.delay("other")

    assert "other" == other.get(timeout=30)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)


def test_revoked_while_it_waits_for_its_eta(shared: SharedSetup):
    """A request that waits for its time in the worker is left out as well."""
    later, seen = shared.send_later(shared.echo)
    revoke(shared, later)

    with pytest.raises(TaskRevokedError):
        later.get(timeout=60)
    shared.wait_for_nobody()
    assert seen["request"]["args"][0] not in shared.items("echo")


def test_revoked_in_a_batch_that_waits_for_a_process(shared: SharedSetup):
    """A batch that is formed loses who is revoked before a pool process is free for it."""
    queue = shared.unique("two")
    gates = [shared.unique("gate") for _ in range(4)]
    routes = {"task_routes": {"f.hold": {"queue": queue}}}
    with shared.another("-c", "2", queue=queue, conf=routes) as worker:
        results = [shared.hold.apply_async((gate,), queue=queue) for gate in gates]
        shared.wait_at(gates[0])
        shared.wait_at(gates[1])
        eventually(lambda: worker.status()["f.hold"]["running"] == 4, "two batches that wait")
        revoke(shared, results[3], worker=worker)
        for gate in gates:
            shared.open_gate(gate)

        assert gates[:3] == shared.get(results[:3])
        with pytest.raises(TaskRevokedError):
            results[3].get(timeout=30)
    assert gates[3] not in shared.items("hold")


@pytest.mark.pools("threads")
def test_revoked_in_a_batch_that_waits_for_a_thread(shared: SharedSetup):
    """On a pool of threads a batch loses who is revoked before a thread takes it."""
    first, second, third = [shared.unique("gate") for _ in range(3)]
    results = [shared.hold.delay(gate) for gate in (first, second)]
    shared.wait_at(first)
    eventually(lambda: shared.worker.status()["f.hold"]["running"] == 2, "a batch that waits")
    revoke(shared, results[1])
    shared.open_gate(second)
    shared.open_gate(first)

    assert first == results[0].get(timeout=30)
    with pytest.raises(TaskRevokedError):
        results[1].get(timeout=30)
    shared.open_gate(third)
    assert third == shared.hold.delay(third).get(timeout=30)
    assert [first, third] == shared.items("hold")


def test_revoked_behind_the_running_batch_in_the_process_runs(shared: SharedSetup):
    """What the pool process has been handed runs, as in Celery; its caller is told REVOKED."""
    first, second = [shared.unique("gate") for _ in range(2)]
    results = [shared.hold.delay(gate) for gate in (first, second)]
    shared.wait_at(first)
    eventually(lambda: shared.worker.status()["f.hold"]["running"] == 2, "a batch behind it")
    revoke(shared, results[1])
    shared.open_gate(second)
    shared.open_gate(first)

    assert first == results[0].get(timeout=30)
    with pytest.raises(TaskRevokedError):
        results[1].get(timeout=30)
    # It runs after that batch, whose gate is forgotten when the test ends.
    assert second == shared.hold.delay(second).get(timeout=30)
    assert [first, second, second] == shared.items("hold")


@pytest.mark.pools("prefork", "threads")
@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
def test_terminate_ends_that_request_and_never_its_neighbours(shared: SharedSetup, signal: str):
    """A running request ends as REVOKED at once; its batch goes on, and so does the process."""
    before = shared.who.delay(0).get(timeout=30)[1]
    gate = shared.unique("gate")
    results = [shared.hold_many.delay(gate, n) for n in range(4)]
    shared.wait_at(gate)
    running = shared.items("hold_many")
    victim = running[-1]
    revoke(shared, results[victim], terminate=True, signal=signal)
    with pytest.raises(TaskRevokedError):
        results[victim].get(timeout=30)
    for _ in results:
        shared.open_gate(gate)
    answers = shared.get(results[:victim] + results[victim + 1 :])

    assert [n for n in range(4) if n != victim] == answers
    assert "REVOKED" == results[victim].state
    assert before == shared.who.delay(0).get(timeout=30)[1]


def test_terminate_of_a_request_in_line_is_a_plain_revoke(shared: SharedSetup):
    """``terminate=True`` for a request that waits leaves it out, and touches nobody."""
    gate = shared.close_gate()
    unwanted, wanted = [shared.echo.delay(x) for x in ("unwanted", "wanted")]
    shared.wait_for_buffered("f.echo", 2)
    revoke(shared, unwanted, terminate=True)
    shared.open_gate(gate)

    assert "wanted" == wanted.get(timeout=30)
    with pytest.raises(TaskRevokedError):
        unwanted.get(timeout=30)
    assert ["wanted"] == shared.items("echo")


def test_revoked_soon_in_line_and_still_queued(shared: SharedSetup):
    """What is called back in passing never reaches the model, unless the pool has it already."""
    gate = shared.close_gate()
    first = [shared.echo.delay(number) for number in range(16)]  # the batch that is next
    wanted, *unwanted = [shared.echo.delay(number) for number in range(16, 150)]
    shared.wait_for_buffered("f.echo", 1)
    for result in unwanted:
        revoke_soon(shared.app, [result.id])
    inspect = shared.app.control.inspect([shared.worker.name], timeout=60.0, limit=1)
    eventually(
        lambda: {each.id for each in unwanted} <= {*inspect.revoked()[shared.worker.name]},
        "word of the revokes",
    )
    shared.open_gate(gate)

    assert [*range(17)] == [each.get(timeout=30) for each in (*first, wanted)]
    for result in unwanted:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=30)
    assert [*range(17)] == sorted(shared.items("echo"))
