"""The judge sees each way to break a promise, and excuses no more than it should."""

from __future__ import annotations

from tests.faults.answers import Answer
from tests.faults.clients import Item
from tests.faults.fault import Fault
from tests.faults.ledger import Run
from tests.faults.verdict import Evidence, Verdict, judge

STRUCK, OVER = 10.0, 11.0


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


def test_neighbours_answer_is_wrong():
    """An answer that belongs to another item is wrong."""
    other = Answer("SUCCESS", 8, seen=9.0)

    assert _judged(first={"a": other}, last={"a": other}).wrong == 1


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


def test_item_that_began_before_the_loss_was_noticed_is_excused():
    """A worker that stands still meanwhile begins what it has, and then finds the broker gone."""
    runs = [Run(1, [3], 10.5, 10.6), Run(1, [3], 11.1, 11.2)]

    assert _judged(runs={3: runs}, noticed=10.45).excused == 1
