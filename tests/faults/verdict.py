"""What became of every item of a trial, judged by what callers and models saw."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.faults.answers import Answer
from tests.faults.clients import Item
from tests.faults.fault import Fault
from tests.faults.ledger import Run

__all__ = ["Evidence", "Verdict", "judge"]

#: Seconds from the end of a model call until its results are stored and acknowledged,
#: with room for a slow machine: a process that dies meanwhile had not finished the batch.
SETTLING = 0.5

#: Seconds until a batch has begun that is in a process' pipe when its worker notices that its
#: connection is gone; where a connection is lost unnoticed, or none is, from the strike on.
NOTICING = 0.1


@dataclass
class Evidence:
    """
    What is known when a trial is over.  Times are of one monotonic clock, in seconds.

    Args:
        items: All that callers tried to send.
        runs: The executions of each item's number.
        first: The first terminal state of each task, by id.
        last: What the result backend holds at the end.
        left: Messages that the broker still holds when all workers have stopped.
        payloads: Seconds until each large array expires that is still stored by then.
        injected: When the fault began to strike.
        struck: When it had struck.
        cleared: When it was over.
        victims: Processes that the fault harmed.
        veterans: Processes that were there when it struck.
        noticed: When the worker has noticed that its connection is gone: late on a slow machine.
    """

    items: list[Item]
    runs: dict[int, list[Run]]
    first: dict[str, Answer]
    last: dict[str, Answer]
    left: int
    payloads: dict[str, int]
    injected: float
    struck: float
    cleared: float
    victims: set[int]
    veterans: set[int]
    noticed: float = 0.0


@dataclass
class Verdict:
    """
    One trial's count of items.

    Args:
        fault: Its name.
        broker: "redis" or "rabbitmq".
        processes: Pool processes of each worker.
        seed: Of everything that was left to chance.
        task: "plain", "options" or "requests": what kind of task it was.
        accepted: Items the broker has taken; no others are judged.
        uncertain: Items that may have been sent twice.
        lost: Without an answer, and in no queue.
        hung: Without an answer though a message is left.
        wrong: With another answer than theirs, or with two.
        repeated: Run again without an excuse.
        excused: Run again because they were running where the fault struck.
        settling: Of these, the model's work was done and its settling was not.
        executions: Items that models were given, repetitions included.
        left: Messages left in the broker for answered items, and arrays that never expire.
        stored: Large arrays that are still stored, until they expire.
        recovery: Seconds from the end of the fault to the first answer of a new run.
        notes: What went wrong, for people.
    """

    fault: str
    broker: str
    processes: int
    seed: int
    task: str = "plain"
    accepted: int = 0
    uncertain: int = 0
    lost: int = 0
    hung: int = 0
    wrong: int = 0
    repeated: int = 0
    excused: int = 0
    settling: int = 0
    executions: int = 0
    left: int = 0
    stored: int = 0
    recovery: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The trial's name: how it can be repeated."""
        shape = f"{self.processes} pool process(es), task {self.task!r}"
        return f"{self.fault} on {self.broker}, {shape}, seed {self.seed}"

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.hung or self.wrong or self.repeated or self.left)


def judge(fault: Fault, evidence: Evidence, verdict: Verdict) -> Verdict:
    """
    Fill in a verdict.

    Args:
        fault: What was done to the items.
        evidence: What is known.
        verdict: With the names and the seed; its counts are still 0.
    """
    items = [item for item in evidence.items if item.accepted]
    verdict.accepted = len(items)
    verdict.executions = sum(len(runs) for runs in evidence.runs.values())
    unanswered = 0
    for item in items:
        if item.id not in evidence.first:
            unanswered += 1
            verdict.notes.append(f"{_shown(item)} has no answer; {_history(item, evidence)}")
        elif complaint := _complaint(fault, item, evidence, verdict):
            verdict.wrong += 1
            verdict.notes.append(f"{_shown(item)} {complaint}; {_history(item, evidence)}")
        _count_repetitions(fault, item, evidence, verdict)
    verdict.hung = min(unanswered, evidence.left)
    verdict.lost = unanswered - verdict.hung
    verdict.left = evidence.left - verdict.hung
    verdict.left += sum(seconds < 0 for seconds in evidence.payloads.values())
    verdict.stored = len(evidence.payloads)
    verdict.recovery = _recovery(evidence)
    return verdict


def _complaint(fault: Fault, item: Item, evidence: Evidence, verdict: Verdict) -> str:
    first, last = evidence.first[item.id], evidence.last.get(item.id)
    if last is None or not first.same_as(last):
        return f"ended twice: {first}, {last}"
    if item.mood == "good" and not _fails_with_its_batch(item, evidence, verdict):
        right = first.state == "SUCCESS" and first.result == 2 * item.number
    else:
        right = first.state == "FAILURE" and first.result in fault.ends
    return "" if right else f"ended with {first.state}: {first.result!r}"


def _fails_with_its_batch(item: Item, evidence: Evidence, verdict: Verdict) -> bool:
    runs = evidence.runs.get(item.number, [])
    return verdict.task == "requests" and any(run.failed for run in runs)


def _count_repetitions(fault: Fault, item: Item, evidence: Evidence, verdict: Verdict) -> None:
    runs = evidence.runs.get(item.number, [])
    uncertain = fault.breaks_sending and item.was_uncertain(evidence.injected, evidence.cleared)
    verdict.uncertain += uncertain
    if len(runs) < 2 or item.mood != "good":
        return  # an item that does harm is tried again, to see that it was the one
    noticed = max(evidence.struck, evidence.noticed)
    until = evidence.cleared if fault.keeps_striking else noticed + NOTICING
    excuses = [run for run in runs if _is_excused(run, evidence, until)]
    if len(runs) - len(excuses) - uncertain > 1:
        verdict.repeated += 1
        verdict.notes.append(f"{_shown(item)} was run again; {_history(item, evidence)}")
        return
    verdict.excused += 1
    verdict.settling += any(
        not run.failed and not run.was_on(evidence.injected, until) for run in excuses
    )


def _is_excused(run: Run, evidence: Evidence, until: float) -> bool:
    if run.failed:
        return True  # the model said no to the batch, which is then run in parts
    if run.ended is None and _harmful(evidence) & set(run.items):
        return True
    if _was_settling_when_killed(run, evidence):
        return True
    since = evidence.injected - SETTLING
    return run.pid in evidence.victims and run.was_on(since, until)


def _was_settling_when_killed(run: Run, evidence: Evidence) -> bool:
    """Return whether an item of the next batch ended the process before the results were stored."""
    kills = [each for number in _harmful(evidence) for each in evidence.runs.get(number, [])]
    return run.ended is not None and any(
        each.pid == run.pid and each.ended is None and 0 <= each.started - run.ended < SETTLING
        for each in kills
    )


def _harmful(evidence: Evidence) -> set[int]:
    return {item.number for item in evidence.items if item.mood != "good"}


def _recovery(evidence: Evidence) -> float | None:
    harmful = _harmful(evidence)
    harms = [run.started for number in harmful for run in evidence.runs.get(number, [])]
    cleared = max(harms, default=evidence.cleared)
    seen = []
    for item in evidence.items:
        answer, runs = evidence.first.get(item.id), evidence.runs.get(item.number)
        if answer and runs and item.number not in harmful and answer.seen > cleared:
            born_after = runs[-1].started > evidence.injected and (
                runs[-1].pid not in evidence.veterans and not harms
            )
            if runs[-1].started > cleared or born_after:
                seen.append(answer.seen)
    return max(min(seen) - cleared, 0.0) if seen else None


def _shown(item: Item) -> str:
    return f"{item.number} ({item.mood})" if item.mood != "good" else str(item.number)


def _history(item: Item, evidence: Evidence) -> str:
    def moment(when: float | None) -> str:
        return "never" if when is None else f"{when - evidence.injected:+.3f}"

    runs = evidence.runs.get(item.number, [])
    ran = [f"{run.pid} from {moment(run.started)} to {moment(run.ended)}" for run in runs]
    sent = ", ".join(f"{moment(a)}..{moment(b)}" for a, b in item.tries)
    cleared = moment(evidence.cleared)
    return f"sent {sent}; ran in {' and '.join(ran) or 'no process'}; cleared {cleared}"
