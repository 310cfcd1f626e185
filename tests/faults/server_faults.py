"""Faults of what workers depend on: broker, result backend, clock."""

from __future__ import annotations

from random import Random

from tests.faults.brokers import RedisBroker
from tests.faults.fault import Fault
from tests.faults.neighbour import Neighbour
from tests.faults.setup import Needs, Setup

__all__ = ["SERVER_FAULTS"]


class BrokerRestarted(Fault):
    """The broker is stopped, as for an update, and comes back a second later."""

    name = "broker-restarted"
    lasts = 1.0
    breaks_sending = True

    def inject(self, setup: Setup, chance: Random) -> None:  # noqa: ARG002
        """Stop the server."""
        setup.victims = set(setup.pool())
        setup.broker.halt()

    def clear(self, setup: Setup) -> None:
        """Start it on the same port and data."""
        setup.broker.revive()


class BrokerKilled(BrokerRestarted):
    """
    SIGKILL to Redis, which comes back a second later with what it wrote down.

    Not for RabbitMQ, which writes acknowledgements down some time after it got them.
    """

    name = "broker-killed"
    brokers = ("redis",)

    def inject(self, setup: Setup, chance: Random) -> None:  # noqa: ARG002
        """Kill the server."""
        setup.victims = set(setup.pool())
        setup.broker.kill()


class BrokerCut(Fault):
    """Every connection to the broker breaks in the middle of a reply."""

    name = "broker-cut"
    needs = Needs(proxy="broker")
    breaks_sending = True

    def inject(self, setup: Setup, chance: Random) -> None:
        """Have the proxy drop each connection after some bytes of a reply."""
        setup.victims = set(setup.pool())
        setup.proxy.tell("cut", chance.randrange(10**9))


class ClientsKilled(Fault):
    """Redis ends every connection with CLIENT KILL: an operator, a proxy's idle limit."""

    name = "clients-killed"
    brokers = ("redis",)
    breaks_sending = True

    def inject(self, setup: Setup, chance: Random) -> None:  # noqa: ARG002
        """End ordinary and subscribed connections."""
        setup.victims = set(setup.pool())
        with setup.broker.connect() as client:
            client.client_kill_filter(_type="pubsub", skipme=True)
            client.client_kill_filter(_type="normal", skipme=True)


class BrokerFull(Fault):
    """Redis refuses every write for three seconds: maxmemory reached, noeviction."""

    name = "broker-full"
    keeps_striking = True
    brokers = ("redis",)
    lasts = 3.0
    breaks_sending = True

    def inject(self, setup: Setup, chance: Random) -> None:  # noqa: ARG002
        """Set the limit below what is used."""
        setup.victims = set(setup.pool())
        _limit_memory(setup.broker, 1)

    def clear(self, setup: Setup) -> None:
        """Lift the limit."""
        _limit_memory(setup.broker, 0)


class ResultsUnreachable(Fault):
    """The result backend, a Redis of its own, refuses connections for five seconds."""

    name = "results-unreachable"
    keeps_striking = True
    brokers = ("redis",)
    needs = Needs(proxy="results")
    lasts = 5.0

    def inject(self, setup: Setup, chance: Random) -> None:  # noqa: ARG002
        """Have the proxy refuse."""
        setup.victims = set(setup.pool())
        setup.proxy.tell("refuse")

    def clear(self, setup: Setup) -> None:
        """Have the proxy accept."""
        setup.proxy.tell("accept")


class ResultsFull(Fault):
    """The result backend, a Redis of its own, refuses every write for three seconds."""

    name = "results-full"
    keeps_striking = True
    brokers = ("redis",)
    needs = Needs(proxy="results")
    lasts = 3.0

    def inject(self, setup: Setup, chance: Random) -> None:  # noqa: ARG002
        """Set the limit below what is used."""
        setup.victims = set(setup.pool())
        _limit_memory(setup.results, 1)

    def clear(self, setup: Setup) -> None:
        """Lift the limit."""
        _limit_memory(setup.results, 0)


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

    def inject(self, setup: Setup, chance: Random) -> None:  # noqa: ARG002
        """Let a neighbour sweep."""
        self._neighbour.enter(setup.broker.url())

    def clear(self, setup: Setup) -> None:  # noqa: ARG002
        """Let it go."""
        self._neighbour.leave()


class ClockStepped(Fault):
    """The worker's wall clock steps by two hours, forth or back; its neighbours' do not."""

    name = "clock-stepped"
    brokers = ("redis",)
    needs = Needs(stepping_clock=True)
    lasts = 1.0

    def __init__(self) -> None:
        self._neighbour = Neighbour(visibility_timeout=3600)

    def inject(self, setup: Setup, chance: Random) -> None:
        """Step, once: the clock stays wrong."""
        setup.step_clock(chance.choice([7200.0, -7200.0]))
        self._neighbour.enter(setup.broker.url())

    def clear(self, setup: Setup) -> None:  # noqa: ARG002
        """Let the neighbour go."""
        self._neighbour.leave()


def _limit_memory(server: RedisBroker, limit: int) -> None:
    """Set how many bytes Redis may use, without throwing anything away; 0 is no limit."""
    with server.connect() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", limit)


SERVER_FAULTS: tuple[Fault, ...] = (
    BrokerRestarted(),
    BrokerKilled(),
    BrokerCut(),
    ClientsKilled(),
    BrokerFull(),
    ResultsUnreachable(),
    ResultsFull(),
    VisibilityShort(),
    ClockStepped(),
)
