"""One worker with the predict function of a model that is loaded here, as it was once done."""

from tiny_model import TextInfillingModel

from celery_batch import RedisWorker

model = TextInfillingModel()
worker = RedisWorker(model.predict, 64, 0.1)
worker.run_forever()
