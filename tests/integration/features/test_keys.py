"""Batches by key: only requests with the same value of a parameter share a call of the model."""

from __future__ import annotations

import pytest

from celery_batch import ChunkFailed, InvalidKey, PoisonItem
from tests.integration.features.test_chunks import close_both_slots
from tests.services.place import SOON, Place, batch_info, eventually

#: Batches are made of what has been received, in whatever way.
pytestmark = pytest.mark.alike_on_brokers


def calls(place: Place) -> list[tuple[str, ...]]:
    """Return the language and the texts of each call of the model."""
    return [tuple(batch) for batch in place.batches("spoken")]


def test_only_requests_of_one_key_share_a_batch(place: Place):
    """Each call has one language, and as many texts as wait for it; each gets its own result."""
    gate = close_both_slots(place)
    texts = [f"{n}" for n in range(8)]
    results = [place.spoken.delay(text, "de" if int(text) % 2 else "fr") for text in texts]
    place.wait_for_buffered("f.spoken", 8)
    place.open_gate(gate)

    assert [f"{'de' if int(text) % 2 else 'fr'}: {text}" for text in texts] == place.get(results)
    assert [("de", *"1357"), ("fr", *"0246")] == sorted(calls(place))
    assert 4 == batch_info(results[0]).size


def test_a_default_and_a_named_argument_are_keys(place: Place):
    """The key is the value that the function gets, however it was given."""
    gate = close_both_slots(place)
    results = [place.spoken.delay("a"), place.spoken.delay(language="en", text="b")]
    results.append(place.spoken.delay("c", None))
    place.wait_for_buffered("f.spoken", 3)
    place.open_gate(gate)

    assert ["en: a", "en: b", "None: c"] == place.get(results)
    assert {("en", "a", "b"), (None, "c")} == set(calls(place))


def test_a_chunk_has_one_key(place: Place):
    """It is sent with one value, and shares batches with requests of its key."""
    gate = close_both_slots(place)
    results = [
        place.spoken.delay_rows(["a", "b"], "de"),
        place.spoken.delay("c", "fr"),
        place.spoken.delay("d", "de"),
        place.spoken.apply_rows(["e"], kwargs={"language": "de"}),
    ]
    place.wait_for_buffered("f.spoken", 4)
    place.open_gate(gate)

    assert [["de: a", "de: b"], "fr: c", "de: d", ["de: e"]] == place.get(results)
    assert [("de", *"abde"), ("fr", "c")] == sorted(calls(place))


def test_a_failing_item_is_isolated_among_those_of_its_key(place: Place):
    """Each further call has one value of the key as well."""
    gate = close_both_slots(place)
    results = [place.spoken.delay(text, "de") for text in ("a", "bad", "c", "d")]
    place.wait_for_buffered("f.spoken", 4)
    place.open_gate(gate)
    found = place.get(results)

    assert ["de: a", "de: c", "de: d"] == [found[0], *found[2:]]
    assert isinstance(found[1], KeyError)
    assert {"de"} == {call[0] for call in calls(place)}


def test_halves_after_out_of_memory_have_the_key(place: Place):
    """What does not fit into memory runs again in parts, with one value of the key."""
    gate = close_both_slots(place)
    results = [place.spoken_hungry.delay(text, "de") for text in "abcd"]
    place.wait_for_buffered("f.spoken_hungry", 4)
    place.open_gate(gate)

    assert ["de: a", "de: b", "de: c", "de: d"] == place.get(results)
    assert [2] * 4 == [batch_info(result).size for result in results]


def test_those_that_may_kill_their_process_run_alone_with_their_key(place: Place):
    """After a process died under a batch, each of its requests gets a call with its key."""
    if place.pool != "prefork":
        pytest.skip("it would be the worker's process")
    gate = close_both_slots(place)
    results = [place.spoken.delay(text, "de") for text in ("a", "deadly", "c")]
    place.wait_for_buffered("f.spoken", 3)
    place.open_gate(gate)
    found = place.get(results)

    assert ["de: a", "de: c"] == [found[0], found[2]]
    assert isinstance(found[1], PoisonItem)
    assert {"de"} == {call[0] for call in calls(place)}


def test_an_item_without_a_key_fails_alone(place: Place):
    """A list is not hashable; the error says so, and others are answered."""
    gate = close_both_slots(place)
    results = [place.spoken.delay("a", ["de"]), place.spoken.delay("b"), place.sized.delay(5)]
    place.wait_for_buffered("f.spoken", 2)
    place.open_gate(gate)
    found = place.get(results)

    assert "en: b" == found[1]
    assert isinstance(found[0], InvalidKey)
    assert "f.spoken: language must be hashable" in str(found[0])
    assert isinstance(found[2], InvalidKey)
    assert "f.sized: its batch_by function raised TypeError" in str(found[2])


def test_wrong_arguments_fail_as_ever(place: Place):
    """What does not fit the function's parameters has an error of its own."""
    message = place.spoken.signature((), {"txt": "a"})

    with pytest.raises(TypeError):
        place.app.send_task(message.task, message.args, message.kwargs).get(timeout=SOON)


def test_a_function_groups_without_another_signature(place: Place):
    """Texts of one length share a call, which gets a list as ever."""
    gate = close_both_slots(place)
    results = place.sized.delay_many(["a", "bb", "c", "dd", "ee"])
    place.wait_for_buffered("f.sized", 5)
    place.open_gate(gate)

    assert ["a", "bb", "c", "dd", "ee"] == place.get(results)
    assert [["a", "c"], ["bb", "dd", "ee"]] == sorted(place.batches("sized"))


def test_a_chunk_of_several_keys_fails(place: Place):
    """A function may give its rows different keys; the error names two of them."""
    assert ["a", "b"] == place.sized.delay_rows(["a", "b"]).get(timeout=SOON)

    with pytest.raises((InvalidKey, ChunkFailed), match="row 1 has the key 1, and row 2 has 2"):
        place.sized.delay_rows(["a", "bb"]).get(timeout=SOON)


def test_a_body_that_is_too_large_to_decode_at_once_shares_no_batch(place: Place):
    """Its key is not known before it runs."""
    gate = close_both_slots(place)
    results = [place.spoken.delay(text, "de") for text in ("a", "b" * (2 << 20), "c")]
    place.wait_for_buffered("f.spoken", 3)
    place.open_gate(gate)
    place.get(results)

    assert [2, 3] == sorted(len(call) for call in calls(place))


def test_a_backfill_cuts_its_chunks_by_key(place: Place):
    """Rows of one language share messages and calls; a row without a key fails by itself."""
    records = [{"text": f"{n}", "language": "de" if n % 3 else "fr"} for n in range(40)]
    records[7]["language"] = ["de"]
    answers = list(place.spoken.backfill(records, window=40))

    assert [answer.row.values for answer in answers] == [
        (each["text"], each["language"]) for each in records
    ]
    assert [7] == [n for n, answer in enumerate(answers) if answer.error]
    assert "InvalidKey" in answers[7].error
    assert "fr: 39" == answers[39].output
    assert len(calls(place)) < 20


def test_workers_report_how_many_keys_wait(place: Place):
    """Beside how many requests."""
    gate = close_both_slots(place)
    results = [place.spoken.delay("a", language) for language in ("de", "fr", "de")]
    place.wait_for_buffered("f.spoken", 3)
    report = place.worker.status()["f.spoken"]
    place.open_gate(gate)
    place.get(results)

    assert (2, 3) == (report["keys"], report["waiting"])


def test_urgent_requests_go_first_with_their_key(place: Place):
    """A batch of their own key overtakes the others."""
    urgent = 9 if place.broker == "rabbitmq" else 0

    def has_come() -> bool:
        status = place.worker.status()["f.spoken"]
        return bool(status["waiting"] == 5 or status["running"])  # it may be ready by now

    gate = close_both_slots(place)
    results = [place.spoken.apply_async((text, "de"), priority=5) for text in "abcd"]
    place.wait_for_buffered("f.spoken", 4)
    results.append(place.spoken.apply_async(("u", "fr"), priority=urgent))
    eventually(has_come, "the urgent request")
    place.open_gate(gate)
    place.get(results)

    assert [("fr", "u"), ("de", *"abcd")] == calls(place)
