"""The program that keeps the lab's workers running: told ADDRESS, PREFIX and WORKERS."""

import sys

from celery_batch import run_redis_workers_forever
from tests.apps.models.scripted_model import ScriptedModel

if __name__ == "__main__":
    run_redis_workers_forever(
        ScriptedModel,
        8,
        max_latency=30.0,
        worker_num=int(sys.argv[3]),
        cuda_devices=(0, 1),
        redis_broker=sys.argv[1],
        prefix=sys.argv[2],
        model_init_args=["hello"],
        model_init_kwargs={"to": "you"},
    )
