"""What a configuration file may contain, and the errors of wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_batch.errors import ConfigurationError
from celery_batch.serve.config import _KEYS, ServeConfig, read_config


@pytest.fixture
def read(tmp_path):
    """Read a text as a configuration file."""

    def read_text(text):
        path = tmp_path / "serve.yaml"
        path.write_text(text)
        return read_config(path)

    return read_text


@pytest.fixture
def complaint(read):
    """Return what is said of a wrong file, from its line on."""

    def read_wrong(text):
        with pytest.raises(ConfigurationError) as refused:
            read(text)
        return str(refused.value).partition("serve.yaml")[2]

    return read_wrong


def test_the_keys_of_easy_serve_mean_what_they_mean_there(read):
    """GPUs are a text of ids, each with ProcessPerGPU workers."""
    config = read('GPUs: "0,1"\nProcessPerGPU: 4\nHandle: ImagenetResnet18Handle\n')

    assert ("cuda:0", "cuda:1") == config.devices
    assert 4 == config.slots
    assert "ImagenetResnet18Handle" == config.handle == config.queue
    assert (9876, "127.0.0.1", None) == (config.port, config.host, config.broker)


def test_every_key_has_its_place(read):
    """Each key of ours fills its field."""
    config = read(
        "Handle: my.models:Cats\nGPUs: cpu\nMaxBatchSize: 8\nMaxWait: 0\nPort: 80\n"
        "Host: '::'\nQueue: cats\nTimeLimit: 2\nBroker: rediss://h/1\nWebWorkers: 2\n"
        "MaxQueue: 100\nEnv:\n  A: 1\n  B: yes\n"
    )

    assert config == ServeConfig(
        "my.models:Cats",
        max_batch_size=8,
        max_wait=0.0,
        port=80,
        host="::",
        queue="cats",
        time_limit=2.0,
        broker="rediss://h/1",
        web_workers=2,
        max_queue=100,
        env={"A": "1", "B": "yes"},
    )
    assert config == ServeConfig.from_json(config.to_json())


def test_no_gpus_is_every_gpu_of_the_machine(read, monkeypatch):
    """Without the key, the devices are those that can be seen."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")

    assert ("cuda:0", "cuda:1") == read("Handle: A").devices


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ('""', ("cpu",)),
        ("cpu", ("cpu",)),
        ("", ("cpu",)),
        ("0", ("cuda:0",)),
        ("0, 2", ("cuda:0", "cuda:2")),
        ("GPU-1a-2b", ("cuda:GPU-1a-2b",)),
    ],
)
def test_gpus_are_read_as_they_are_written(read, text, devices):
    """A number is an id as well, nothing means the CPU."""
    assert devices == read(f"Handle: A\nGPUs: {text}\n").devices


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1: must be keys with values, such as Handle: MyHandle"),
        ("- 1", ":1: must be keys with values, such as Handle: MyHandle"),
        ("Port: 1\n", ": Handle is missing; name the class that serves requests"),
        ("\nHandel: A", ":2: Handel: no such key; did you mean Handle?"),
        ("Handle: A\ngpus: 1", ":2: gpus: no such key; did you mean GPUs?"),
        ("Handle: A\n? [a]\n: 1", ":2: tag:yaml.org,2002:seq: no such key"),
        ("Handle: A\n\nHandle: B", ":3: Handle: given twice"),
        ("Handle: 3", ":1: Handle: must be a class, or module:Class, got 3"),
        ("Handle: A\nPort: '80'", ":2: Port: must be a whole number from 1 to 65535, got '80'"),
        ("Handle: A\nPort: yes", ":2: Port: must be a whole number from 1 to 65535, got True"),
        ("Handle: A\nMaxWait: -1", ":2: MaxWait: must be seconds, got -1"),
        ("Handle: A\nTimeLimit: .inf", ":2: TimeLimit: must be seconds above 0, got inf"),
        ("Handle: A\nGPUs: [0]", ':2: GPUs: must be GPU ids as in "0,1", or cpu, got [0]'),
        ("Handle: A\nGPUs: x", ":2: GPUs: must be GPU ids as in \"0,1\", or cpu, got 'x'"),
        ("Handle: A\nGPUs: 0,0", ":2: GPUs: a GPU is named twice in '0,0'"),
        ("Handle: A\nBroker: amqp://h", ":2: Broker: must be the URL of a Redis"),
        ("Handle: A\nEnv: 3", ":2: Env: must be variables with values"),
        ("Handle: A\nEnv:\n  B: [1]", ":3: Env: B: must be a variable with one value"),
        ("Handle: A\nPort: !!python/name:os.system", ":2: Port: could not determine"),
        ("Handle: A\n B: C: D", ":2: mapping values are not allowed here"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(complaint, text, said):
    """The message names the line, the key, and what to write."""
    assert complaint(text).startswith(said)


def test_every_key_is_documented():
    """The page that explains the file has a row for each key, and no other."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "web" / "serve.md").read_text()

    assert sorted(_KEYS) == sorted(re.findall(r"^\| `([A-Z]\w+)` \|", page, re.MULTILINE))
