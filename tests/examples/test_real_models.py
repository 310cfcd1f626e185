"""The programs on their real models, which need torch: images, and the infilled word."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from io import BytesIO

import pytest
from PIL import Image

from celery_batch import LoadFailed
from celery_batch.runtime.registry import model_calls
from examples import classify, image_classifier, infill_naive, infill_threaded
from examples.image_classifier import ImageClassifier
from examples.resnet import ResNet18

torch = pytest.importorskip("torch")

#: Of the repr of torchvision 0.29's list of names and shapes.
TORCHVISION = "9682c6fd405d8d701ab48875427c1aae63e06927fe09b4b1f8d66f5cc28da7d3"


def picture(colour, size=(64, 48), kind="PNG") -> bytes:
    """Return a picture's file."""
    file = BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return file.getvalue()


PICTURES = [picture(colour) for colour in ("red", "green", "blue", "white")]


@pytest.fixture(scope="module")
def model():
    """The classifier with random weights, in batches of any size."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("RESNET_WEIGHTS", raising=False)
        model = ImageClassifier()
        model.load("cpu")
        return model


@pytest.fixture(scope="module")
def client(model):
    """The web server on that classifier."""
    return classify.create_app(model).test_client()


def torchvision_names():
    """Derive the names and shapes of torchvision's resnet18, one layer after the other."""

    def normalization(name, channels):
        yield from ((f"{name}.{each}", (channels,)) for each in ("weight", "bias"))
        yield from ((f"{name}.running_{each}", (channels,)) for each in ("mean", "var"))
        yield f"{name}.num_batches_tracked", ()

    def convolution(place, part, shape):
        suffix, number = part
        yield f"{place}{suffix}.weight", shape
        yield from normalization(f"{place}{number}", shape[0])

    yield from convolution("", ("conv1", "bn1"), (64, 3, 7, 7))
    before = 64
    for stage, after in enumerate((64, 128, 256, 512), 1):
        for block in (0, 1):
            place = f"layer{stage}.{block}."
            yield from convolution(place, ("conv1", "bn1"), (after, before, 3, 3))
            yield from convolution(place, ("conv2", "bn2"), (after, after, 3, 3))
            if before != after:
                parts = ("downsample.0", "downsample.1")
                yield from convolution(place, parts, (after, before, 1, 1))
            before = after
    yield from (("fc.weight", (1000, 512)), ("fc.bias", (1000,)))


def test_names_and_shapes_are_torchvisions():
    """The 122 tensors of our ResNet-18 have torchvision's names, shapes and order."""
    ours = [(name, tuple(tensor.shape)) for name, tensor in ResNet18().state_dict().items()]

    assert list(torchvision_names()) == ours
    assert 122 == len(ours)
    assert TORCHVISION == hashlib.sha256(repr(ours).encode()).hexdigest()


def test_weights_are_loaded_by_path(model, tmp_path, monkeypatch):
    """Weights and labels that the environment names are the ones that answer."""
    weights, labels = tmp_path / "weights.pth", tmp_path / "labels.txt"
    state = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    state["fc.weight"].zero_()
    state["fc.bias"].zero_()[7] = 100.0
    torch.save(state, weights)
    labels.write_text("\n".join(f"thing {number}" for number in range(1000)))
    monkeypatch.setenv("RESNET_WEIGHTS", str(weights))
    monkeypatch.setenv("RESNET_LABELS", str(labels))
    named = ImageClassifier()
    named.load("cpu")

    answers = model_calls(named)(PICTURES[:1])

    assert [{"class": 7, "label": "thing 7", "probability": 1.0}] == answers


@pytest.mark.parametrize("content", [None, b"no weights", {"fc.bias": 1}], ids=str)
def test_weights_that_do_not_fit_are_named(content, tmp_path, monkeypatch):
    """A file that is missing, broken or of another network fails the load by its name."""
    weights = tmp_path / "weights.pth"
    if isinstance(content, bytes):
        weights.write_bytes(content)
    elif content:
        torch.save(content, weights)
    monkeypatch.setenv("RESNET_WEIGHTS", str(weights))

    with pytest.raises(LoadFailed, match=f"RESNET_WEIGHTS={weights}"):
        ImageClassifier().load("cpu")


def test_picture_is_cut_and_scaled_as_torchvision_does():
    """Of a picture the middle is seen, 224 of the 256 that its shorter side becomes."""
    wide, file = Image.new("RGB", (512, 128), "black"), BytesIO()
    wide.paste("white", (200, 8, 312, 120))
    wide.save(file, "PNG")

    seen = image_classifier._decoded(file.getvalue())

    assert (3, 224, 224) == tuple(seen.shape)
    # The bilinear filter mixes a little of the neighbours into the outermost pixels.
    assert {255} == set(seen[:, 1:-1, 1:-1].flatten().tolist())
    assert 255 > int(seen.min())


def test_uploaded_pictures_are_classified(client, model):
    """Pictures of several formats in one form get an answer each, in their order."""
    files = [PICTURES[0], picture("blue", kind="JPEG"), picture("green", kind="GIF")]

    answer = client.post("/stream", data={"file": [_upload(file) for file in files]})

    assert HTTPStatus.OK == answer.status_code
    assert model_calls(model)(files) == answer.get_json()


def test_crowd_shares_runs_of_the_network(client, model, monkeypatch):
    """Uploads of the same moment share a batch, and everybody gets their own answer."""
    sizes = []
    collate = model.collate
    monkeypatch.setattr(model, "collate", lambda x: sizes.append(len(x)) or collate(x))

    def ask(file):
        return client.application.test_client().post("/stream", data={"file": _upload(file)})

    with ThreadPoolExecutor(8) as threads:
        answers = [answer.get_json()[0] for answer in threads.map(ask, PICTURES * 2)]

    assert max(sizes) > 1
    assert model_calls(model)(PICTURES) * 2 == answers


def test_broken_picture_fails_alone(client):
    """Bytes that are no picture are refused with the reason."""
    answer = client.post("/stream", data={"file": _upload(b"GIF89a but no more")})

    assert HTTPStatus.BAD_REQUEST == answer.status_code
    assert "these 18 bytes are no picture" in answer.get_json()["error"]


def test_bomb_is_no_picture(model, monkeypatch):
    """A small file of too many pixels is refused before they are unpacked."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)

    bomb, small = model_calls(model)([PICTURES[0], picture("red", size=(8, 8))])

    assert "decompression bomb" in str(bomb)
    assert small["class"] >= 0


@pytest.mark.parametrize(
    ("step", "path"), [(infill_naive, "/naive"), (infill_threaded, "/stream")], ids=["1", "2"]
)
def test_sentences_are_filled_in(step, path):
    """The web servers answer with the model of this repository unless told otherwise."""
    client = step.create_app().test_client()

    assert ["you"] == client.post(path, data={"s": "Happy birthday to [MASK]."}).get_json()


def _upload(file: bytes) -> tuple[BytesIO, str]:
    return BytesIO(file), "picture"
