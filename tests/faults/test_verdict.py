"""The judge sees each way to break a promise, and excuses no more than it should."""

from __future__ import annotations

from tests.faults.answers import Answer
from tests.faults.clients import Item
from tests.faults.fault import Fault
from tests.faults.ledger import Run
from tests.faults.verdict import Evidence, Verdict, judge

STRUCK, OVER = 10.0, 11.0


class _Cut(Fault):
    name = "cut"
    breaks_sending = True


class _Raising(Fault):
    name = "raising"
    ends = ("BadItem",)


class _Lasting(Fault):
    name = "lasting"
    keeps_striking = True


def _judged(fault: Fault | None = None, **changes: object) -> Verdict:
    item = Item(3, id="a", accepted=True, tries=[(8.0, 8.1)])
    right = Answer("SUCCESS", 6, seen=9.0)
    facts = {
        "items": [item],
        "runs": {3: [Run(1, [3], 8.2, 8.3)]},
        "first": {"a": right},
        "last": {"a": right},
        "left": 0,
        "payloads": {},
        "injected": STRUCK,
        "struck": STRUCK + 0.1,
        "cleared": OVER,
        "victims": {1},
        "veterans": {1, 2},
    }
    return judge(fault or Fault(), Evidence(**{**facts, **changes}), Verdict("", "", 1, 0))


def test_right_answer_is_right():
    """One run, one right answer: nothing to complain of."""
    assert _judged().ok


def test_item_without_answer_is_lost():
    """An accepted item without an answer or a message is lost."""
    assert _judged(first={}, last={}).lost == 1


def test_item_with_message_hangs():
    """An accepted item without an answer, a message of which is left, hangs."""
    verdict = _judged(first={}, last={}, left=1)

    assert (0, 1, 0) == (verdict.lost, verdict.hung, verdict.left)


def test_message_of_answered_item_is_left():
    """A message that is not needed any more would run its item again one day."""
    assert _judged(left=1).left == 1


def test_neighbours_answer_is_wrong():
    """An answer that belongs to another item is wrong."""
    other = Answer("SUCCESS", 8, seen=9.0)

    assert _judged(first={"a": other}, last={"a": other}).wrong == 1


def test_second_end_is_wrong():
    """An item that ends once more, in another state, has not one terminal state."""
    assert _judged(last={"a": Answer("FAILURE", "WorkerLostError", seen=12.0)}).wrong == 1


def test_refused_item_is_not_judged():
    """What the broker never took was never promised."""
    verdict = _judged(items=[Item(3, id="a", tries=[(8.0, 8.1)])], first={}, last={})

    assert (0, True) == (verdict.accepted, verdict.ok)


def test_repetition_needs_an_excuse():
    """An item that had long ended when the fault struck may not run again."""
    runs = [Run(1, [3], 8.2, 8.3), Run(2, [3], 11.1, 11.2)]

    assert _judged(runs={3: runs}).repeated == 1


def test_item_that_ran_when_its_process_was_struck_is_excused():
    """An item that was running in a victim may run again."""
    runs = [Run(1, [3], 9.9, None), Run(2, [3], 11.1, 11.2)]
    verdict = _judged(runs={3: runs})

    assert (0, 1) == (verdict.repeated, verdict.excused)


def test_item_that_ran_in_another_process_is_not_excused():
    """An item that was running where nothing struck may not run again."""
    runs = [Run(2, [3], 9.9, 10.2), Run(1, [3], 11.1, 11.2)]

    assert _judged(runs={3: runs}).repeated == 1


def test_item_that_began_after_the_strike_is_not_excused():
    """A fault that has struck is no excuse for what begins later, unless it keeps striking."""
    runs = [Run(1, [3], 10.5, 10.6), Run(1, [3], 11.1, 11.2)]

    assert _judged(runs={3: runs}).repeated == 1
    assert _judged(_Lasting(), runs={3: runs}).excused == 1


def test_item_whose_results_were_not_stored_when_another_killed_the_process_is_excused():
    """The next batch has begun in its process by then; one that began later is no reason."""
    good, killer = Item(3, id="a", accepted=True), Item(4, id="b", accepted=True, mood="exit")
    runs = [Run(1, [3], 8.2, 8.3), Run(2, [3], 9.1, 9.2)]
    verdicts = [
        _judged(items=[good, killer], victims=set(), runs={3: runs, 4: [Run(pid, [4], at, ended)]})
        for pid, at, ended in ((1, 8.31, None), (1, 8.9, None), (2, 8.31, None), (1, 8.31, 8.4))
    ]

    assert [0, 1, 1, 1] == [verdict.repeated for verdict in verdicts]


def test_third_run_needs_an_excuse_of_its_own():
    """One excuse is good for one repetition."""
    runs = [Run(1, [3], 9.9, None), Run(2, [3], 11.1, 11.2), Run(2, [3], 11.3, 11.4)]

    assert _judged(runs={3: runs}).repeated == 1


def test_uncertain_sending_excuses_one_repetition():
    """What was being sent when the connection broke may have been sent twice."""
    item = Item(3, id="a", accepted=True, tries=[(9.9, 10.1)])
    runs = [Run(1, [3], 12.0, 12.1), Run(2, [3], 12.2, 12.3)]

    assert _judged(_Cut(), items=[item], runs={3: runs}).ok


def test_recovery_counts_from_the_end_of_the_fault():
    """Only the answer of a run that began afterwards shows that work goes on."""
    late = Answer("SUCCESS", 6, seen=13.5)
    verdict = _judged(runs={3: [Run(1, [3], 13.0, 13.1)]}, first={"a": late}, last={"a": late})

    assert verdict.recovery == 2.5


def test_array_that_never_expires_is_left():
    """One that does is only counted."""
    verdict = _judged(payloads={"a": 600, "b": -1})

    assert (verdict.left, verdict.stored) == (1, 2)


def test_calls_of_a_list_of_requests_fail_together():
    """Nothing runs such a batch again in parts, so each call has the error of its batch."""
    failed = {3: [Run(1, [3, 4], 8.2, 8.3, failed=True)]}
    error = {"a": Answer("FAILURE", "BadItem", seen=9.0)}
    raised = Evidence(
        items=[Item(3, id="a", accepted=True)],
        runs=failed,
        first=error,
        last=error,
        left=0,
        payloads={},
        injected=STRUCK,
        struck=STRUCK,
        cleared=OVER,
        victims=set(),
        veterans=set(),
    )

    assert judge(_Raising(), raised, Verdict("", "", 1, 0, "requests")).ok
    assert judge(_Raising(), raised, Verdict("", "", 1, 0, "plain")).wrong == 1
