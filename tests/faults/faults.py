"""The faults: each knows what it needs, how to strike and how to be over."""

from __future__ import annotations

import os
import signal
from random import Random

from tests.faults.neighbour import Neighbour
from tests.faults.stage import Needs, Stage

__all__ = ["FAULTS", "Fault"]


class Fault:
    """
    One way to go wrong.

    What a fault harms is written into the stage's `victims`: pool processes in which
    the item that runs then may run once more.
    """

    #: How it is called on the command line and in the table.
    name = ""
    #: Brokers it makes sense with.
    brokers: tuple[str, ...] = ("redis", "rabbitmq")
    #: What it wants of the stage.
    needs = Needs()
    #: Seconds from `inject` to `clear`.
    lasts = 0.0
    #: What four of the items do to their batch.
    mood = ""
    #: How those four end: the errors' names.
    ends: tuple[str, ...] = ()
    #: A fault of the broker's connection: what was being sent may have been sent twice.
    breaks_sending = False
    #: Items in all; a slow model gets fewer.
    size = 300

    def inject(self, stage: Stage, chance: Random) -> None:
        """Strike."""

    def clear(self, stage: Stage) -> None:
        """Be over; where a worker was to be restarted, return when it is ready."""


class ChildKilled(Fault):
    """SIGKILL to one pool process: the kernel's out-of-memory killer, a segfault."""

    name = "child-killed"

    def inject(self, stage: Stage, chance: Random) -> None:
        """Kill one of the pool processes."""
        victim = chance.choice(stage.pool())
        stage.victims = {victim}
        os.kill(victim, signal.SIGKILL)


class WorkerKilled(Fault):
    """SIGKILL to all of a worker, which a supervisor then restarts."""

    name = "worker-killed"

    def inject(self, stage: Stage, chance: Random) -> None:  # noqa: ARG002
        """Kill the worker with all its processes."""
        stage.victims = set(stage.crews[0].signal(signal.SIGKILL))

    def clear(self, stage: Stage) -> None:
        """Start it again."""
        _restart(stage)


class WorkerTerminated(Fault):
    """SIGTERM, as at every deployment: a warm shutdown, and a new worker."""

    name = "worker-terminated"

    def inject(self, stage: Stage, chance: Random) -> None:  # noqa: ARG002
        """Ask the main process to end."""
        os.kill(stage.crews[0].main(), signal.SIGTERM)

    def clear(self, stage: Stage) -> None:
        """Start it again when it has ended."""
        _restart(stage)


class WorkerQuit(Fault):
    """SIGQUIT with a soft shutdown of two seconds, and a new worker."""

    name = "worker-quit"
    brokers = ("redis",)
    needs = Needs(conf={"worker_soft_shutdown_timeout": 2.0})

    def inject(self, stage: Stage, chance: Random) -> None:  # noqa: ARG002
        """Ask the main process to end soon."""
        stage.victims = set(stage.pool())
        os.kill(stage.crews[0].main(), signal.SIGQUIT)

    def clear(self, stage: Stage) -> None:
        """Start it again when it has ended."""
        _restart(stage)


class WorkerStopped(Fault):
    """SIGSTOP for ten seconds: a machine that swaps, a paused virtual machine."""

    name = "worker-stopped"
    brokers = ("redis",)
    lasts = 10.0

    def inject(self, stage: Stage, chance: Random) -> None:  # noqa: ARG002
        """Stop all its processes."""
        stage.crews[0].signal(signal.SIGSTOP)

    def clear(self, stage: Stage) -> None:
        """Let them go on."""
        stage.crews[0].signal(signal.SIGCONT)


class OneOfTwoKilled(Fault):
    """SIGKILL to one of two workers, which nobody restarts."""

    name = "one-of-two-killed"
    needs = Needs(workers=2)

    def inject(self, stage: Stage, chance: Random) -> None:
        """Kill one worker with all its processes."""
        crew = chance.choice(stage.crews)
        stage.victims = set(crew.signal(signal.SIGKILL))


class BrokerRestarted(Fault):
    """SIGKILL to the broker, which comes back a second later with what it wrote down."""

    name = "broker-restarted"
    lasts = 1.0
    breaks_sending = True

    def inject(self, stage: Stage, chance: Random) -> None:  # noqa: ARG002
        """Kill the server."""
        stage.victims = set(stage.pool())
        stage.broker.kill()

    def clear(self, stage: Stage) -> None:
        """Start it on the same port and data."""
        stage.broker.revive()


class BrokerCut(Fault):
    """Every connection to the broker breaks in the middle of a reply."""

    name = "broker-cut"
    needs = Needs(proxy="broker")
    breaks_sending = True

    def inject(self, stage: Stage, chance: Random) -> None:
        """Have the proxy drop each connection after some bytes of a reply."""
        stage.victims = set(stage.pool())
        stage.proxy.tell("cut", chance.randrange(10**9))


class ResultsUnreachable(Fault):
    """The result backend, a Redis of its own, refuses connections for five seconds."""

    name = "results-unreachable"
    brokers = ("redis",)
    needs = Needs(proxy="results")
    lasts = 5.0

    def inject(self, stage: Stage, chance: Random) -> None:  # noqa: ARG002
        """Have the proxy refuse."""
        stage.victims = set(stage.pool())
        stage.proxy.tell("refuse")

    def clear(self, stage: Stage) -> None:
        """Have the proxy accept."""
        stage.proxy.tell("accept")


class ClientsKilled(Fault):
    """Redis ends every connection with CLIENT KILL: an operator, a proxy's idle limit."""

    name = "clients-killed"
    brokers = ("redis",)
    breaks_sending = True

    def inject(self, stage: Stage, chance: Random) -> None:  # noqa: ARG002
        """End ordinary and subscribed connections."""
        stage.victims = set(stage.pool())
        with stage.broker.connect() as client:
            client.client_kill_filter(_type="pubsub", skipme=True)
            client.client_kill_filter(_type="normal", skipme=True)


class VisibilityShort(Fault):
    """A visibility timeout of a second, while a message waits and runs for longer."""

    name = "visibility-short"
    brokers = ("redis",)
    needs = Needs(
        conf={"broker_transport_options": {"visibility_timeout": 1}}, seconds_per_item=0.06
    )
    lasts = 4.0
    size = 150

    def __init__(self) -> None:
        self._neighbour = Neighbour(visibility_timeout=1)

    def inject(self, stage: Stage, chance: Random) -> None:  # noqa: ARG002
        """Let a neighbour sweep."""
        self._neighbour.enter(stage.broker.url())

    def clear(self, stage: Stage) -> None:  # noqa: ARG002
        """Let it go."""
        self._neighbour.leave()


class OutOfMemory(Fault):
    """Redis refuses every write for three seconds: maxmemory reached, noeviction."""

    name = "broker-full"
    brokers = ("redis",)
    lasts = 3.0
    breaks_sending = True

    def inject(self, stage: Stage, chance: Random) -> None:  # noqa: ARG002
        """Set the limit below what is used."""
        stage.victims = set(stage.pool())
        with stage.broker.connect() as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", 1)

    def clear(self, stage: Stage) -> None:
        """Lift the limit."""
        with stage.broker.connect() as client:
            client.config_set("maxmemory", 0)


class ClockStepped(Fault):
    """The worker's wall clock steps by two hours, forth or back; its neighbours' do not."""

    name = "clock-stepped"
    brokers = ("redis",)
    needs = Needs(stepping_clock=True)
    lasts = 1.0

    def __init__(self) -> None:
        self._neighbour = Neighbour(visibility_timeout=3600)

    def inject(self, stage: Stage, chance: Random) -> None:
        """Step, once: the clock stays wrong."""
        stage.step_clock(chance.choice([7200.0, -7200.0]))
        self._neighbour.enter(stage.broker.url())

    def clear(self, stage: Stage) -> None:  # noqa: ARG002
        """Let the neighbour go."""
        self._neighbour.leave()


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


def _restart(stage: Stage) -> None:
    crew = stage.crews[0]
    if not crew.ended(timeout=30):
        raise TimeoutError(f"{crew.name} has not ended\n{crew.child.tail()}")
    crew.launch()
    crew.wait()


FAULTS: tuple[Fault, ...] = (
    ItemsRaise(),
    ItemsKill(),
    ChildKilled(),
    WorkerKilled(),
    OneOfTwoKilled(),
    WorkerTerminated(),
    WorkerQuit(),
    WorkerStopped(),
    BrokerRestarted(),
    BrokerCut(),
    ClientsKilled(),
    OutOfMemory(),
    ResultsUnreachable(),
    VisibilityShort(),
    ClockStepped(),
)
