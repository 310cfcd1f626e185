"""Bytes of a picture in, what is in it out."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

from celery_batch import LoadFailed, Model

__all__ = ["ImageClassifier"]

#: The side of what the network sees, and of what that is cut out of, in pixels.
_SIDE, _WHOLE = 224, 256

#: Of a picture that is decoded.
_MOST_PIXELS = 50_000_000

#: Most threads that decode; each holds a picture's pixels.
_MOST_THREADS = 8

#: Of the three colours in the pictures that the published weights were made with.
_MEAN, _SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


#: What the stages of the model pass on: of all pictures, and the errors of all files.
_Batch = tuple[Any, list[Exception | None]]


class ImageClassifier(Model):
    """
    ResNet-18 for pictures of any format that Pillow reads.

    The environment variable ``RESNET_WEIGHTS`` names a file of torchvision's weights,
    such as ``resnet18-f37072fd.pth``, and ``RESNET_LABELS`` a text file with a label for
    each class, one a line.  Without weights the network guesses, the same each time.
    """

    def load(self, device: str) -> None:
        """Make the network on its device, with its weights."""
        import torch  # noqa: PLC0415 - a web server whose model lives elsewhere needs none

        from examples.resnet import ResNet18  # noqa: PLC0415 - likewise

        torch.manual_seed(0)
        network = ResNet18()
        if weights := os.environ.get("RESNET_WEIGHTS"):
            try:
                network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
            except Exception as error:  # torch has many ways to say that a file is none of its own
                raise LoadFailed(
                    f"RESNET_WEIGHTS={weights} are no weights of ResNet-18: {error}"
                ) from error
        labels = os.environ.get("RESNET_LABELS")
        self.labels = Path(labels).read_text().splitlines() if labels else None
        self.network: Any = network.eval().to(device)
        self.device = device
        # Pillow lets other threads run while it decodes and resizes.
        count = min(os.cpu_count() or 1, _MOST_THREADS)
        self.threads = ThreadPoolExecutor(count, thread_name_prefix="decode")

    def examples(self) -> list[bytes]:
        """Warm up with a black picture."""
        from PIL import Image  # noqa: PLC0415 - see load

        file = BytesIO()
        Image.new("RGB", (_WHOLE, _WHOLE)).save(file, "PNG")
        return [file.getvalue()]

    def collate(self, batch: list[bytes]) -> _Batch:
        """
        Decode pictures in threads, while the network classifies those before, and copy them.

        Args:
            batch: Each picture's file, as bytes.

        Returns:
            The pixels of all that are pictures, on the network's device, or None without any;
            and for each file None, or a ValueError where its bytes are no picture.
        """
        import torch  # noqa: PLC0415 - see load

        pictures = list(self.threads.map(_decoded, batch))
        errors = [each if isinstance(each, Exception) else None for each in pictures]
        good = [each for each in pictures if isinstance(each, torch.Tensor)]
        if not good:
            return None, errors
        # Bytes travel to the device, a quarter of what the numbers would be.
        pixels = torch.stack(good)
        if self.device.startswith("cuda"):
            pixels = pixels.pin_memory()
        return pixels.to(self.device, non_blocking=True), errors

    def predict(self, batch: _Batch) -> _Batch:
        """Classify what `collate` returned; return the classes with their probabilities."""
        import torch  # noqa: PLC0415 - see load

        pixels, errors = batch
        if pixels is None:
            return None, errors
        mean, spread = (
            torch.tensor(each, device=self.device).view(3, 1, 1) for each in (_MEAN, _SPREAD)
        )
        with torch.inference_mode():
            scores = self.network((pixels / 255 - mean) / spread)
            best = scores.softmax(1).max(1)
        return zip(best.indices.tolist(), best.values.tolist(), strict=True), errors

    def uncollate(self, output: _Batch) -> list[dict[str, Any] | Exception]:
        """Return the class of each picture, its label and its probability; or the error."""
        best, errors = output
        return [self._answer(*next(best)) if error is None else error for error in errors]

    def _answer(self, number: int, probability: float) -> dict[str, Any]:
        label = self.labels[number] if self.labels else None
        return {"class": number, "label": label, "probability": round(probability, 4)}


def _decoded(file: bytes) -> Any:
    """Return the middle of a picture, as bytes of shape (3, side, side), or why there is none."""
    import torch  # noqa: PLC0415 - see load
    from PIL import Image  # noqa: PLC0415 - see load

    try:
        picture = Image.open(BytesIO(file))
        if prod(picture.size) > _MOST_PIXELS:  # which a few bytes can unpack to
            return ValueError(f"{picture.width} x {picture.height} are too many pixels")
        colours = picture.convert("RGB")
    except Exception as error:  # noqa: BLE001 - each format has its own ways to be broken
        return ValueError(f"these {len(file)} bytes are no picture: {error}")
    (left, right), (top, bottom) = (_middle(length, min(colours.size)) for length in colours.size)
    # The middle alone: of a very long picture the whole would be huge.
    middle = colours.resize(
        (_SIDE, _SIDE), Image.Resampling.BILINEAR, box=(left, top, right, bottom)
    )
    pixels = torch.frombuffer(bytearray(middle.tobytes()), dtype=torch.uint8)
    return pixels.view(_SIDE, _SIDE, 3).permute(2, 0, 1)


def _middle(length: int, shorter: int) -> tuple[float, float]:
    """Return where the network's part of a side begins and ends, were the shorter one 256 long."""
    whole = _WHOLE * length // shorter
    start = round((whole - _SIDE) / 2)
    return start * length / whole, (start + _SIDE) * length / whole
