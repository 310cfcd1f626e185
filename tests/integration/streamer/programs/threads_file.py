"""Workers of two prefixes, each kept running by a thread, on GPUs that the program has chosen."""

import os
import threading

os.environ["CUDA_VISIBLE_DEVICES"] = "4,5"

from celery_batch import run_redis_workers_forever
from tests.apps.models.scripted_model import ScriptedModel

if __name__ == "__main__":
    threads = [
        threading.Thread(
            target=run_redis_workers_forever,
            args=(ScriptedModel, 8),
            kwargs={"cuda_devices": gpu, "prefix": prefix, "model_init_args": [prefix]},
        )
        for prefix, gpu in (("left", 4), ("right", 5))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
