"""Faults of processes: they are killed, stopped, or asked to end."""

from __future__ import annotations

import os
import signal
from random import Random

from tests.faults.fault import Fault
from tests.faults.setup import Needs, Setup

__all__ = ["PROCESS_FAULTS", "restart"]


class ChildKilled(Fault):
    """SIGKILL to one pool process: the kernel's out-of-memory killer, a segfault."""

    name = "child-killed"

    def inject(self, setup: Setup, chance: Random) -> None:
        """Kill one of the pool processes."""
        victim = chance.choice(setup.pool())
        setup.victims = {victim}
        os.kill(victim, signal.SIGKILL)


class WorkerKilled(Fault):
    """SIGKILL to all of a worker, which a supervisor then restarts."""

    name = "worker-killed"

    def inject(self, setup: Setup, chance: Random) -> None:  # noqa: ARG002
        """Kill the worker with all its processes."""
        setup.victims = set(setup.workers[0].signal(signal.SIGKILL))

    def clear(self, setup: Setup) -> None:
        """Start it again."""
        restart(setup)


class OneOfTwoKilled(Fault):
    """SIGKILL to one of two workers, which is not restarted."""

    name = "one-of-two-killed"
    needs = Needs(workers=2)

    def inject(self, setup: Setup, chance: Random) -> None:
        """Kill one worker with all its processes."""
        worker = chance.choice(setup.workers)
        setup.victims = set(worker.signal(signal.SIGKILL))


class WorkerTerminated(Fault):
    """SIGTERM, as at every deployment: a warm shutdown, and a new worker."""

    name = "worker-terminated"

    def inject(self, setup: Setup, chance: Random) -> None:  # noqa: ARG002
        """Ask the main process to end."""
        os.kill(setup.workers[0].main(), signal.SIGTERM)

    def clear(self, setup: Setup) -> None:
        """Start it again when it has ended."""
        restart(setup)


class WorkerQuit(Fault):
    """SIGQUIT with a soft shutdown of two seconds, and a new worker."""

    name = "worker-quit"
    keeps_striking = True
    brokers = ("redis",)
    needs = Needs(conf={"worker_soft_shutdown_timeout": 2.0})

    def inject(self, setup: Setup, chance: Random) -> None:  # noqa: ARG002
        """Ask the main process to end soon."""
        setup.victims = set(setup.pool())
        os.kill(setup.workers[0].main(), signal.SIGQUIT)

    def clear(self, setup: Setup) -> None:
        """Start it again when it has ended."""
        restart(setup)


class WorkerStopped(Fault):
    """SIGSTOP for ten seconds: a machine that swaps, a paused virtual machine."""

    name = "worker-stopped"
    brokers = ("redis",)
    lasts = 10.0

    def inject(self, setup: Setup, chance: Random) -> None:  # noqa: ARG002
        """Stop all its processes."""
        setup.workers[0].signal(signal.SIGSTOP)

    def clear(self, setup: Setup) -> None:
        """Let them go on."""
        setup.workers[0].signal(signal.SIGCONT)


def restart(setup: Setup) -> None:
    """Start the first worker again when it has ended, and return when it is ready."""
    worker = setup.workers[0]
    if not worker.ended(timeout=30):
        raise TimeoutError(f"{worker.name} has not ended\n{worker.child.tail()}")
    worker.launch()
    worker.wait()


PROCESS_FAULTS: tuple[Fault, ...] = (
    ChildKilled(),
    WorkerKilled(),
    OneOfTwoKilled(),
    WorkerTerminated(),
    WorkerQuit(),
    WorkerStopped(),
)
