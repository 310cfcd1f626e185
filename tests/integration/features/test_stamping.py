"""Stamps: each item keeps its own, and hands them on."""

from __future__ import annotations

from celery.canvas import StampingVisitor

from tests.services.place import Place, eventually


class Customer(StampingVisitor):
    """Stamps every task with a customer's name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_signature(self, _sig, **_headers):
        """Return the stamp."""
        return {"customer": self.name}


def test_each_item_of_a_batch_keeps_its_own_stamps(place: Place):
    """Items that share a batch have the stamps that their own caller gave them."""
    results = {}
    for name in ("anna", "bert"):
        sig = place.stamped.s(name)
        sig.stamp(Customer(name))
        results[name] = sig.delay()
    plain = place.stamped.delay("nobody")
    place.get([*results.values(), plain])
    seen = {fact["id"]: fact["stamps"] for fact in place.recall("stamps")}

    assert "anna" == seen[results["anna"].id]["customer"]
    assert "bert" == seen[results["bert"].id]["customer"]
    assert not seen[plain.id]


def test_stamps_are_handed_on_to_linked_tasks(place: Place):
    """What a stamped item links to carries the same stamp."""
    sig = place.stamped.s(1)
    sig.link(place.stamped.s())
    sig.stamp(Customer("anna"))
    first = sig.delay()
    first.get(timeout=30)
    facts = eventually(
        lambda: place.recall("stamps") if len(place.recall("stamps")) == 2 else [],
        "the linked task",
    )

    assert ["anna", "anna"] == [fact["stamps"]["customer"] for fact in facts]


def test_a_retried_item_keeps_its_stamps(place: Place):
    """A new try of an item has the stamps of the first."""
    word = place.unique("retry")
    sig = place.act_stamped.s(word)
    sig.stamp(Customer("anna"))
    sig.delay().get(timeout=30)

    assert ["anna", "anna"] == [f["stamps"]["customer"] for f in place.recall("stamps")]
