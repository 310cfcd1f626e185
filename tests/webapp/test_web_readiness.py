"""Which workers web servers count on."""

from __future__ import annotations

from webapp.readiness import Probe


def test_paused_worker_is_not_counted_on():
    """A model that is warm where nothing is taken is of no use to anybody."""
    probe = Probe()
    probe.hear({"w1": {"shop.task": {"warm": True, "paused": True}}})
    before = probe.census().cold(["shop.task"])
    probe.hear({"w2": {"shop.task": {"warm": True, "paused": False}}})

    assert ["shop.task"] == before
    assert {"shop.task": ("w2",)} == probe.census().warm
