"""A client: one request, then two hundred through futures."""

import sys

from tiny_model import KNOWN

from celery_batch import RedisStreamer

streamer = RedisStreamer(prefix=sys.argv[1]) if sys.argv[1:] else RedisStreamer()
print(streamer.submit(list(KNOWN)).result())

futures = [streamer.submit(list(KNOWN)) for _ in range(200)]
answers = [future.result() for future in futures]
print(len(answers), sum(answer == list(KNOWN.values()) for answer in answers))
