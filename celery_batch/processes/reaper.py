"""

Runs one server, and ends it when the process that started it is gone.

A program of its own, standard library only, started by `celery_batch.processes.managed_process`
as ``python -I -S reaper.py FOLDER ORPHAN_GRACE COMMAND...``.

Rule 1: Standard input is a pipe whose other end only the parent holds.  End of
    file means that the parent is gone, however it ended.  (Linux can also signal a
    child when its parent dies, but does so when the *thread* that started the child
    ends, and no other system has it.)
Rule 2: The parent may write in how many seconds the server should have stopped by itself.
    If it ends without that, it was killed, and the grace is short.
Rule 3: The server leads a process group.  What is left of the group when the server
    has ended, or when its grace is over, is killed.
Rule 4: Should the reaper itself be killed, Linux kills the server: the reaper has
    one thread, so the signal that rule 1 distrusts can be trusted here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time

#: Seconds a server gets to stop by itself once its parent was killed, or the reaper gets a signal.
ORPHAN_GRACE = 0.7

#: Linux' prctl option "signal me when my parent ends".
PR_SET_PDEATHSIG = 1

STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run(command: list[str], orphan_grace: float = ORPHAN_GRACE) -> int:
    """Run a server until it ends, the parent asks for that or is gone; return its exit code."""
    wake = _wake_on(signal.SIGCHLD, *STOPPING_SIGNALS)
    # Descriptors that the parent passed on purpose reach the server; ours close themselves.
    server = subprocess.Popen(  # noqa: S603 (the caller's own command)
        command,
        stdin=subprocess.DEVNULL,
        close_fds=False,
        process_group=0,
        preexec_fn=_end_with_reaper,  # noqa: PLW1509 (this program has one thread)
    )
    _until_ended(server, wake, orphan_grace)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)
    code = server.wait()
    return code if code >= 0 else 128 - code  # 128 + n if signal n ended it


def _until_ended(server: subprocess.Popen[bytes], wake: int, orphan_grace: float) -> None:
    """Return when the server has ended by itself or its grace is over."""
    sources = [sys.stdin.fileno(), wake]
    deadline = float("inf")
    while server.poll() is None and (now := time.monotonic()) < deadline:
        wait = None if deadline == float("inf") else deadline - now
        for source in select.select(sources, [], [], wait)[0]:
            data = os.read(source, 64)
            grace = orphan_grace
            if source == wake:
                if not set(data) & set(STOPPING_SIGNALS):
                    continue
            elif data:
                grace = min(map(float, data.split()))
            else:
                sources.remove(source)
            if deadline == float("inf"):
                server.terminate()
            deadline = min(deadline, time.monotonic() + grace)


def _wake_on(*signals: int) -> int:
    """Return a descriptor on which the number of each signal can be read."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda _number, _frame: None)
    return reads


def _end_with_reaper() -> None:
    """Have Linux kill this process when the reaper is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _is_orphan() -> bool:
    """Return whether the parent is gone, without waiting for it."""
    pipe = sys.stdin.fileno()
    return bool(select.select([pipe], [], [], 0)[0]) and not os.read(pipe, 64)


def main() -> int:
    """Run the server of the command line, then remove its folder if the parent is gone."""
    folder, orphan_grace, *command = sys.argv[1:]
    code = run(command, float(orphan_grace))
    # A parent that lives removes the folder itself, after it has read the log.
    if folder and _is_orphan():
        shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
