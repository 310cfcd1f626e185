"""The web server of the tutorial: without batches, with a thread, with processes."""

import sys

from flask import Flask, jsonify, request
from tiny_model import ManagedBertModel, TextInfillingModel

from celery_batch import Streamer, ThreadedStreamer

app = Flask(__name__)
model = TextInfillingModel()


@app.route("/naive", methods=["GET", "POST"])
def naive_predict():
    """Answer a request by itself."""
    inputs = request.args.getlist("s") if request.method == "GET" else request.form.getlist("s")
    return jsonify(model.predict(inputs))


@app.route("/thread", methods=["POST"])
def thread_predict():
    """Answer with everybody's, by a thread of this process."""
    return jsonify(threaded.predict(request.form.getlist("s")))


@app.route("/stream", methods=["POST"])
def stream_predict():
    """Answer with everybody's, by processes on two GPUs."""
    return jsonify(streamer.predict(request.form.getlist("s")))


if __name__ == "__main__":
    threaded = ThreadedStreamer(model.predict, batch_size=64, max_latency=0.1)
    streamer = Streamer(
        ManagedBertModel, batch_size=64, max_latency=0.1, worker_num=2, cuda_devices=(0, 1)
    )
    app.run(port=int(sys.argv[1]), debug=False)
