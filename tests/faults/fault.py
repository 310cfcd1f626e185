"""What a fault is."""

from __future__ import annotations

from random import Random

from tests.faults.setup import Needs, Setup

__all__ = ["Fault"]


class Fault:
    """
    One way to go wrong.

    What a fault harms is written into the setup's `victims`: pool processes in which
    the item that runs then may run once more.
    """

    #: How it is called on the command line and in the table.
    name = ""
    #: Brokers it makes sense with.
    brokers: tuple[str, ...] = ("redis", "rabbitmq")
    #: What it wants of the setup.
    needs = Needs()
    #: Seconds from `inject` to `clear`.
    lasts = 0.0
    #: What four of the items do to their batch.
    mood = ""
    #: How those four end: the errors' names.
    ends: tuple[str, ...] = ()
    #: A fault of the broker's connection: what was being sent may have been sent twice.
    breaks_sending = False
    #: It does harm until it is cleared, not only at the moment it strikes.
    keeps_striking = False
    #: Items in all; a slow model gets fewer.
    size = 300

    def inject(self, setup: Setup, chance: Random) -> None:
        """Strike."""

    def clear(self, setup: Setup) -> None:
        """Be over; where a worker was to be restarted, return when it is ready."""
