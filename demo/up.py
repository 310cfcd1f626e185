"""``make up``: the servers of the demo and Flower, until Ctrl-C."""

from __future__ import annotations

import sys

from rich.console import Console

from celery_batch.cli.errors import INTERRUPTED
from demo.command import run_command
from demo.servers import Servers

__all__ = ["main"]

#: Ports of the servers, where they are free; else any free ones.
WEB_PORT, FLOWER_PORT = 8000, 5555

#: Seconds between two checks of the servers.
_CHECK_EVERY = 0.5


def main() -> int:
    """Run the servers until Ctrl-C, SIGTERM or a failure; return the exit code."""
    code = run_command(_serve)
    # Ctrl-C is how this command is meant to end.
    return 0 if code == INTERRUPTED else code


def _serve(console: Console) -> None:
    with Servers(web_port=WEB_PORT, flower_port=FLOWER_PORT) as servers:
        servers.start(lambda line: console.print(line, markup=False))
        console.print(_how_to(servers), markup=False, highlight=False)
        while True:
            servers.check()
            servers.children[0].wait(_CHECK_EVERY)


def _how_to(servers: Servers) -> str:
    return f"""
In another shell, to ask from Python or to look with `celery -A workers ...`:

  export CELERY_BROKER_URL='{servers.redis.url}'
  export CELERY_RESULT_BACKEND='{servers.redis.url}'

Page:    {servers.web_url}/
API:     {servers.web_url}/docs
Ask:     curl {servers.web_url}/stream --data-urlencode 's=twinkle twinkle [MASK] star.'
Image:   curl {servers.web_url}/images -F 'image=@photo.jpg'
Flower:  {servers.flower_url}/tasks
Metrics: {servers.web_url}/metrics
Script:  curl {servers.flower_url}/api/tasks
Logs:    {servers.folder}
Ctrl-C stops everything."""


if __name__ == "__main__":
    sys.exit(main())
