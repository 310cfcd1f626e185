"""A command on a terminal, as a person would see it."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import time
from fcntl import ioctl
from termios import TIOCSWINSZ

#: What a terminal understands and a person does not see.
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[()].|[=>78])")


class Terminal:
    """
    Runs a command on a terminal of its own, until the context ends.

    Args:
        command: The command.
        env: Its environment.
        columns: How wide the terminal is.
        lines: How high.
    """

    def __init__(self, command, *, env, columns=120, lines=40):
        self._end, inner = pty.openpty()
        ioctl(inner, TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        kept = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            command,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**kept, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(inner)
        self.raw = ""

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.process.kill()
        self.process.wait()
        os.close(self._end)

    @property
    def text(self):
        """All that was shown so far, without colours and movements."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def read_until(self, shown, timeout=60.0):
        """
        Read on until something is shown; return all that was shown so far.

        Args:
            shown: Whether it is, of the text.
            timeout: Seconds after which it is a failure.
        """
        deadline = time.monotonic() + timeout
        while not shown(self.text):
            if not self._read(max(deadline - time.monotonic(), 0)):
                raise AssertionError(f"not shown:\n{self.text}")
        return self.text

    def read_to_the_end(self, timeout=60.0):
        """Read until the command has ended; return its exit code."""
        deadline = time.monotonic() + timeout
        while self._read(max(deadline - time.monotonic(), 0)):
            pass
        return self.process.wait(timeout)

    def _read(self, seconds):
        if not select.select([self._end], [], [], seconds)[0]:
            return False
        try:
            more = os.read(self._end, 65536)
        except OSError:  # the command has ended
            return False
        self.raw += more.decode(errors="replace")
        return bool(more)
