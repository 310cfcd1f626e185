"""All the faults, in the order of the table: of items, of processes, of servers."""

from __future__ import annotations

from tests.faults.fault import Fault
from tests.faults.process_faults import PROCESS_FAULTS
from tests.faults.server_faults import SERVER_FAULTS

__all__ = ["FAULTS"]


class ItemsRaise(Fault):
    """Four items make the model raise."""

    name = "items-raise"
    mood = "raise"
    ends = ("BadItem",)


class ItemsKill(Fault):
    """Four items end their process, each time they run."""

    name = "items-kill"
    mood = "exit"
    ends = ("PoisonItem", "WorkerLostError")


FAULTS: tuple[Fault, ...] = (ItemsRaise(), ItemsKill(), *PROCESS_FAULTS, *SERVER_FAULTS)
