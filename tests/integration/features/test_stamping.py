"""Stamps: each item keeps its own, and hands them on."""

from __future__ import annotations

from celery.canvas import StampingVisitor

from tests.services.shared_setup import SharedSetup, eventually


class Customer(StampingVisitor):
    """Stamps every task with a customer's name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_signature(self, _sig, **_headers):
        """Return the stamp."""
        return {"customer": self.name}


def test_each_item_of_a_batch_keeps_its_own_stamps(shared: SharedSetup):
    """Items that share a batch have the stamps that their own caller gave them."""
    results = {}
    for name in ("anna", "bert"):
        sig = shared.stamped.s(name)
        sig.stamp(Customer(name))
        results[name] = sig.delay()
    plain = shared.stamped.delay("nobody")
    shared.get([*results.values(), plain])
    seen = {fact["id"]: fact["stamps"] for fact in shared.recall("stamps")}

    assert "anna" == seen[results["anna"].id]["customer"]
    assert "bert" == seen[results["bert"].id]["customer"]
    assert not seen[plain.id]


def test_stamps_are_handed_on_to_linked_tasks(shared: SharedSetup):
    """What a stamped item links to carries the same stamp."""
    sig = shared.stamped.s(1)
    sig.link(shared.stamped.s())
    sig.stamp(Customer("anna"))
    first = sig.delay()
    first.get(timeout=30)
    facts = eventually(
        lambda: shared.recall("stamps") if len(shared.recall("stamps")) == 2 else [],
        "the linked task",
    )

    assert ["anna", "anna"] == [fact["stamps"]["customer"] for fact in facts]


def test_a_retried_item_keeps_its_stamps(shared: SharedSetup):
    """A new try of an item has the stamps of the first."""
    word = shared.unique("retry")
    sig = shared.act_stamped.s(word)
    sig.stamp(Customer("anna"))
    sig.delay().get(timeout=30)

    assert ["anna", "anna"] == [f["stamps"]["customer"] for f in shared.recall("stamps")]
