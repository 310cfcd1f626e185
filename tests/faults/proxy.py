"""
A TCP proxy that breaks connections in the middle of a reply.

A program of its own, so that its speed does not depend on the threads of the
harness: ``python -m tests.faults.proxy TARGET_PORT``.  It says its port, takes one
command a line on standard input, answers each with a line, and ends with its parent.

    cut SEED    break every open connection: after some bytes of a server's reply,
                or soon, where the server has nothing to say
    refuse      break every connection, and take no new ones
    accept      take new ones again
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
from pathlib import Path
from typing import Self

__all__ = ["Proxy"]

#: Seconds that a connection to be cut may wait for a reply to be cut in.
_LONGEST_SILENCE = 0.2
#: Most bytes of a reply that still pass.
_LONGEST_PREFIX = 400


class Proxy:
    """
    The harness' handle on the program.

    Args:
        target: The port of the server behind it.
    """

    def __init__(self, target: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.proxy", str(target)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=Path(__file__).parents[2],
        )
        self.port = int(self._answer())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def tell(self, *command: object) -> None:
        """Have a command carried out; return when it is."""
        print(*command, file=self._process.stdin)
        self._answer()

    def _answer(self) -> str:
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the proxy has ended")
        return answer


class _Link:
    """One client's connection and the one behind it."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self._writers = writers
        #: Bytes of the server's next replies that may still pass; None is no limit.
        self.left: int | None = None

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if replies and self.left is not None:
                    data, self.left = data[: self.left], self.left - len(data)
                writer.write(data)
                await writer.drain()
                if replies and self.left is not None and self.left <= 0:
                    await asyncio.sleep(0.01)  # an abort would throw away what is on its way
                    break
        self.close()


class _Server:
    def __init__(self, target: int) -> None:
        self._target = target
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def accept(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        self._server.close()
        for link in list(self._links):
            link.close()

    async def cut(self, seed: str) -> None:
        chance = random.Random(seed)
        links = list(self._links)
        for link in links:
            link.left = chance.randint(1, _LONGEST_PREFIX)
        await asyncio.sleep(_LONGEST_SILENCE)
        for link in links:
            link.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, back_writer)
        self._links.add(link)
        with contextlib.suppress(asyncio.CancelledError):  # the proxy ends
            await asyncio.gather(
                link.pump(reader, back_writer, replies=False),
                link.pump(back_reader, writer, replies=True),
            )
        self._links.discard(link)


async def _main() -> None:
    server = _Server(int(sys.argv[1]))
    await server.accept()
    print(server.port, flush=True)  # noqa: T201
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, *arguments = line.split()
        await getattr(server, name)(*arguments)
        print("done", flush=True)  # noqa: T201
    await server.refuse()


if __name__ == "__main__":
    asyncio.run(_main())
