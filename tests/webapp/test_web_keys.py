"""API keys: how they are given, and what a request must bring."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import subprocess
import sys

import pytest

from celery_batch.errors import ConfigurationError
from webapp.errors import Unauthorized
from webapp.keys import Keyring

ANN, BOB = "ann-has-this-secret-1", "bob-has-that-secret-2"
DIGEST = hashlib.sha256(BOB.encode()).hexdigest()


@pytest.fixture
def ring():
    """Two keys, one of them known by its digest only."""
    return Keyring.read(f"ann={ANN}, bob=sha256:{DIGEST}", "")


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"authorization": f"Bearer {ANN}"}, "ann"),
        ({"authorization": f"bearer   {BOB} "}, "bob"),
        ({"x-api-key": BOB}, "bob"),
        ({"authorization": "Basic cHJveHk6aXRz", "x-api-key": ANN}, "ann"),
    ],
    ids=["bearer", "spaces", "header", "beside-a-proxy"],
)
def test_a_known_key_names_its_holder(ring, headers, name):
    """Either header will do, and another scheme may be a proxy's own business."""
    assert name == ring.holder(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": f"Basic {ANN}"},
        {"x-api-key": ANN[:-1]},
        {"x-api-key": f"{ANN}, {ANN}"},
        {"authorization": "Bearer nonsense", "x-api-key": ANN},
        {"x-api-key": DIGEST},
        {"x-api-key": f"sha256:{DIGEST}"},
        {"x-api-key": "\udcff\x00é" * 100_000},
    ],
    ids=["none", "empty", "basic", "short", "twice", "two", "digest", "as-in-file", "odd"],
)
def test_other_requests_are_told_what_to_bring(ring, headers):
    """Without a key that is known the answer is 401, and names the scheme."""
    with pytest.raises(Unauthorized) as refused:
        ring.holder(headers)
    answer = refused.value.answer()

    assert 401 == answer.status
    assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="webapp"')
    assert ANN not in str(answer.body)


def test_every_key_is_compared_whichever_fits(monkeypatch):
    """How long it takes does not tell which key was nearly right, nor where it stands."""
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda *pair: compared.append(pair) or real(*pair))
    ring = Keyring.read(" ".join(f"k{number}={number:020}" for number in range(7)), "")
    counts = []
    for key in [f"{0:020}", f"{6:020}", "x" * 20]:
        compared.clear()
        with contextlib.suppress(Unauthorized):
            ring.holder({"x-api-key": key})
        counts.append(len(compared))

    assert [7, 7, 7] == counts
    assert {32} == {len(side) for pair in compared for side in pair}


def test_keys_may_lie_in_a_file(tmp_path):
    """One a line, with remarks; a holder may have an old secret and a new one."""
    file = tmp_path / "keys"
    file.write_text(f"# who may ask\nann={ANN}  # since May\n\nann=sha256:{DIGEST}\n")
    ring = Keyring.read("", str(file))

    assert ["ann", "ann"] == [ring.holder({"x-api-key": key}) for key in (ANN, BOB)]


def test_without_keys_nobody_is_asked():
    """Keys are optional."""
    assert not Keyring.read("", "")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (ANN, "WEBAPP_API_KEYS, key 1: must be name=sha256:DIGEST or name=secret"),
        (f"ann={ANN} bob=short", "'bob' must have 16 to 512 characters"),
        (f"ann={ANN} bob={ANN}", "key 2: 'bob' has the secret of another key"),
        ("ann=sha256:123456789012", "needs 64 hexadecimal digits"),
        (f"an/n={ANN}", "must be name=sha256:DIGEST or name=secret"),
    ],
    ids=["no-name", "short", "same", "digest", "name"],
)
def test_a_wrong_key_stops_the_start_and_stays_secret(given, message):
    """The error says which key it is, and what is wrong, and shows no secret."""
    with pytest.raises(ConfigurationError, match=message) as error:
        Keyring.read(given, "")

    assert ANN not in str(error.value)


def test_a_missing_file_stops_the_start():
    """A service that should ask for keys does not start without them."""
    with pytest.raises(ConfigurationError, match=r"WEBAPP_API_KEYS_FILE: .*No such file"):
        Keyring.read("", "/nowhere/keys")


def test_a_new_key_is_a_command_away(tmp_path):
    """What it prints goes into the server's file as it is; the holder's part is told apart."""
    file = tmp_path / "keys"
    command = [sys.executable, "-m", "webapp.keys", "ann"]
    with file.open("w") as lines:
        said = subprocess.run(command, stdout=lines, stderr=subprocess.PIPE, text=True, check=True)
    secret = said.stderr.splitlines()[0].rpartition(": ")[2]

    assert "ann" == Keyring.read("", str(file)).holder({"x-api-key": secret})
    assert secret not in file.read_text()


def test_a_line_with_words_before_it_is_told_so(tmp_path):
    """Whoever copies too much into the file is told what a line looks like."""
    file = tmp_path / "keys"
    file.write_text(f"for ann: ann=sha256:{DIGEST}\n")
    with pytest.raises(
        ConfigurationError, match=r"line 1: must be name=sha256:DIGEST or .* before"
    ):
        Keyring.read("", str(file))
