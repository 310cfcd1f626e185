"""Batches by key: only requests with the same value of a parameter share a call of the model."""

from __future__ import annotations

import pytest

from celery_batch import ChunkFailed, InvalidKey, PoisonItem
from tests.integration.features.test_chunks import close_both_slots
from tests.services.shared_setup import SOON, SharedSetup, batch_info, eventually

#: Batches are made of what has been received, in whatever way.
pytestmark = pytest.mark.alike_on_brokers


def calls(shared: SharedSetup) -> list[tuple[str, ...]]:
    """Return the language and the texts of each call of the model."""
    return [tuple(batch) for batch in shared.batches("spoken")]


def test_only_requests_of_one_key_share_a_batch(shared: SharedSetup):
    """Each call has one language, and as many texts as wait for it; each gets its own result."""
    gate = close_both_slots(shared)
    texts = [f"{n}" for n in range(8)]
    results = [shared.spoken.delay(text, "de" if int(text) % 2 else "fr") for text in texts]
    shared.wait_for_buffered("f.spoken", 8)
    shared.open_gate(gate)

    assert [f"{'de' if int(text) % 2 else 'fr'}: {text}" for text in texts] == shared.get(results)
    assert [("de", *"1357"), ("fr", *"0246")] == sorted(calls(shared))
    assert 4 == batch_info(results[0]).size


def test_a_default_and_a_named_argument_are_keys(shared: SharedSetup):
    """The key is the value that the function gets, however it was given."""
    gate = close_both_slots(shared)
    results = [shared.spoken.delay("a"), shared.spoken.delay(language="en", text="b")]
    results.append(shared.spoken.delay("c", None))
    shared.wait_for_buffered("f.spoken", 3)
    shared.open_gate(gate)

    assert ["en: a", "en: b", "None: c"] == shared.get(results)
    assert {("en", "a", "b"), (None, "c")} == set(calls(shared))


def test_a_chunk_has_one_key(shared: SharedSetup):
    """It is sent with one value, and shares batches with requests of its key."""
    gate = close_both_slots(shared)
    results = [
        shared.spoken.delay_rows(["a", "b"], "de"),
        shared.spoken.delay("c", "fr"),
        shared.spoken.delay("d", "de"),
        shared.spoken.apply_rows(["e"], kwargs={"language": "de"}),
    ]
    shared.wait_for_buffered("f.spoken", 4)
    shared.open_gate(gate)

    assert [["de: a", "de: b"], "fr: c", "de: d", ["de: e"]] == shared.get(results)
    assert [("de", *"abde"), ("fr", "c")] == sorted(calls(shared))


def test_a_failing_item_is_isolated_among_those_of_its_key(shared: SharedSetup):
    """Each further call has one value of the key as well."""
    gate = close_both_slots(shared)
    results = [shared.spoken.delay(text, "de") for text in ("a", "bad", "c", "d")]
    shared.wait_for_buffered("f.spoken", 4)
    shared.open_gate(gate)
    found = shared.get(results)

    assert ["de: a", "de: c", "de: d"] == [found[0], *found[2:]]
    assert isinstance(found[1], KeyError)
    assert {"de"} == {call[0] for call in calls(shared)}


def test_halves_after_out_of_memory_have_the_key(shared: SharedSetup):
    """What does not fit into memory runs again in parts, with one value of the key."""
    gate = close_both_slots(shared)
    results = [shared.spoken_hungry.delay(text, "de") for text in "abcd"]
    shared.wait_for_buffered("f.spoken_hungry", 4)
    shared.open_gate(gate)

    assert ["de: a", "de: b", "de: c", "de: d"] == shared.get(results)
    assert [2] * 4 == [batch_info(result).size for result in results]


def test_those_that_may_kill_their_process_run_alone_with_their_key(shared: SharedSetup):
    """After a process died under a batch, each of its requests gets a call with its key."""
    if shared.pool != "prefork":
        pytest.skip("it would be the worker's process")
    gate = close_both_slots(shared)
    results = [shared.spoken.delay(text, "de") for text in ("a", "deadly", "c")]
    shared.wait_for_buffered("f.spoken", 3)
    shared.open_gate(gate)
    found = shared.get(results)

    assert ["de: a", "de: c"] == [found[0], found[2]]
    assert isinstance(found[1], PoisonItem)
    assert {"de"} == {call[0] for call in calls(shared)}


def test_an_item_without_a_key_fails_alone(shared: SharedSetup):
    """A list is not hashable; the error says so, and others are answered."""
    gate = close_both_slots(shared)
    results = [shared.spoken.delay("a", ["de"]), shared.spoken.delay("b"), shared.sized.delay(5)]
    shared.wait_for_buffered("f.spoken", 2)
    shared.open_gate(gate)
    found = shared.get(results)

    assert "en: b" == found[1]
    assert isinstance(found[0], InvalidKey)
    assert "f.spoken: language must be hashable" in str(found[0])
    assert isinstance(found[2], InvalidKey)
    assert "f.sized: its batch_by function raised TypeError" in str(found[2])


def test_wrong_arguments_fail_as_ever(shared: SharedSetup):
    """What does not fit the function's parameters has an error of its own."""
    message = shared.spoken.signature((), {"txt": "a"})

    with pytest.raises(TypeError):
        shared.app.send_task(message.task, message.args, message.kwargs).get(timeout=SOON)


def test_a_function_groups_without_another_signature(shared: SharedSetup):
    """Texts of one length share a call, which gets a list as ever."""
    gate = close_both_slots(shared)
    results = shared.sized.delay_many(["a", "bb", "c", "dd", "ee"])
    shared.wait_for_buffered("f.sized", 5)
    shared.open_gate(gate)

    assert ["a", "bb", "c", "dd", "ee"] == shared.get(results)
    assert [["a", "c"], ["bb", "dd", "ee"]] == sorted(shared.batches("sized"))


def test_a_chunk_of_several_keys_fails(shared: SharedSetup):
    """A function may give its rows different keys; the error names two of them."""
    assert ["a", "b"] == shared.sized.delay_rows(["a", "b"]).get(timeout=SOON)

    with pytest.raises((InvalidKey, ChunkFailed), match="row 1 has the key 1, and row 2 has 2"):
        shared.sized.delay_rows(["a", "bb"]).get(timeout=SOON)


def test_a_body_that_is_too_large_to_decode_at_once_shares_no_batch(shared: SharedSetup):
    """Its key is not known before it runs."""
    gate = close_both_slots(shared)
    results = [shared.spoken.delay(text, "de") for text in ("a", "b" * (2 << 20), "c")]
    shared.wait_for_buffered("f.spoken", 3)
    shared.open_gate(gate)
    shared.get(results)

    assert [2, 3] == sorted(len(call) for call in calls(shared))


def test_a_backfill_cuts_its_chunks_by_key(shared: SharedSetup):
    """Rows of one language share messages and calls; a row without a key fails by itself."""
    records = [{"text": f"{n}", "language": "de" if n % 3 else "fr"} for n in range(40)]
    records[7]["language"] = ["de"]
    answers = list(shared.spoken.backfill(records, window=40))

    assert [answer.row.values for answer in answers] == [
        (each["text"], each["language"]) for each in records
    ]
    assert [7] == [n for n, answer in enumerate(answers) if answer.error]
    assert "InvalidKey" in answers[7].error
    assert "fr: 39" == answers[39].output
    assert len(calls(shared)) < 20


def test_workers_report_how_many_keys_wait(shared: SharedSetup):
    """Beside how many requests."""
    gate = close_both_slots(shared)
    results = [shared.spoken.delay("a", language) for language in ("de", "fr", "de")]
    shared.wait_for_buffered("f.spoken", 3)
    report = shared.worker.status()["f.spoken"]
    shared.open_gate(gate)
    shared.get(results)

    assert (2, 3) == (report["keys"], report["waiting"])


def test_urgent_requests_go_first_with_their_key(shared: SharedSetup):
    """A batch of their own key overtakes the others."""
    urgent = 9 if shared.broker == "rabbitmq" else 0

    def has_come() -> bool:
        status = shared.worker.status()["f.spoken"]
        return bool(status["waiting"] == 5 or status["running"])  # it may be ready by now

    gate = close_both_slots(shared)
    results = [shared.spoken.apply_async((text, "de"), priority=5) for text in "abcd"]
    shared.wait_for_buffered("f.spoken", 4)
    results.append(shared.spoken.apply_async(("u", "fr"), priority=urgent))
    eventually(has_come, "the urgent request")
    shared.open_gate(gate)
    shared.get(results)

    assert [("fr", "u"), ("de", *"abcd")] == calls(shared)
