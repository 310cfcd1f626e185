"""Two hundred requests of three items through futures, without any web."""

from tiny_model import KNOWN, TextInfillingModel

from celery_batch import ThreadedStreamer

model = TextInfillingModel()
streamer = ThreadedStreamer(model.predict, 64, 0.1)

xs = []
for _ in range(200):
    future = streamer.submit(list(KNOWN))
    xs.append(future)

answers = [future.result() for future in xs]
print(answers[0])
print(len(answers), sum(answer == list(KNOWN.values()) for answer in answers))
