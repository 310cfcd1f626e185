"""
Images by shape: they are enlarged in batches of equal width and height, with no padding at all.

    celery batch redis                                         # prints lines for the others
    celery -A examples.images_by_shape worker --concurrency=1
    python -m examples.images_by_shape cat.jpg dog.png         # writes cat.2x.png, dog.2x.png
"""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import Any

from celery import Celery

from celery_batch import Model

__all__ = ["Enlarger", "app", "enlarge", "main"]

app = Celery("images_by_shape")  # reads CELERY_BROKER_URL and CELERY_RESULT_BACKEND
app.conf.task_default_queue = "images_by_shape"  # other examples may share the broker


def _open(file: bytes) -> Any:
    """Open an image's file, of which Pillow reads no more than the header."""
    from PIL import Image  # noqa: PLC0415 - a client needs none

    return Image.open(BytesIO(file))


class Enlarger(Model):
    """Doubles width and height, and sharpens."""

    @staticmethod
    def batch_by(file: bytes) -> tuple[int, int]:
        """Return width and height; the worker's main process reads them from the header."""
        size: tuple[int, int] = _open(file).size
        return size

    @staticmethod
    def cost(file: bytes) -> int:
        """Return the number of pixels."""
        width, height = _open(file).size
        return int(width * height)

    def load(self, device: str) -> None:
        """Make the filter that sharpens: each pixel moves away from the mean of its neighbours."""
        import torch  # noqa: PLC0415 - a client needs none

        weights = torch.full((3, 1, 3, 3), -1 / 8)
        weights[:, :, 1, 1] = 2.0
        self.torch, self.weights = torch, weights.to(device)

    def predict(self, files: list[bytes]) -> list[bytes]:
        """Return PNG files; all images have the same shape."""
        torch, functional = self.torch, self.torch.nn.functional
        pixels = [bytearray(_open(file).convert("RGB").tobytes()) for file in files]
        width, height = _open(files[0]).size
        images = torch.stack([torch.frombuffer(each, dtype=torch.uint8) for each in pixels])
        images = images.view(len(files), height, width, 3).to(self.weights.device)
        with torch.inference_mode():
            large = functional.interpolate(
                images.permute(0, 3, 1, 2).float(), scale_factor=2, mode="bilinear"
            )
            framed = functional.pad(large, (1, 1, 1, 1), mode="replicate")
            sharp = functional.conv2d(framed, self.weights, groups=3).round().clamp(0, 255)
        rows = sharp.byte().permute(0, 2, 3, 1).cpu().numpy()
        return [_png(each) for each in rows]


def _png(pixels: Any) -> bytes:
    from PIL import Image  # noqa: PLC0415 - see above

    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


#: At most four million pixels in a batch, be it 64 small images or a large one.
enlarge = Enlarger.as_task(app, name="enlarge", max_batch_size=64, max_batch_cost=4_000_000)


def main(*paths: str) -> list[Path]:
    """Enlarge the images of some files; return the new files."""
    results = enlarge.delay_many([Path(path).read_bytes() for path in paths])
    made = [Path(path).with_suffix(".2x.png") for path in paths]
    for path, result in zip(made, results, strict=True):
        path.write_bytes(result.get(timeout=60))
    return made


if __name__ == "__main__":
    main(*sys.argv[1:])
