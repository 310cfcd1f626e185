"""Plots of two pictures side by side, which need matplotlib."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from celery_batch.errors import ConfigurationError

__all__ = ["FOCUS", "LIMIT", "PLAIN", "check_plot", "finish_axes", "plotted"]

#: Red and greys differ in lightness too, and lines in their marks: for colour-blind readers.
FOCUS, PLAIN, LIMIT = "#b03a2e", "#566573", "#7f8c8d"

_KINDS = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Raise ConfigurationError if no plot can be written there: before minutes of measuring."""
    if path.suffix.lower() not in _KINDS:
        raise ConfigurationError(f"--plot: {path}: must end in one of {', '.join(_KINDS)}")
    if not path.parent.is_dir():
        raise ConfigurationError(f"--plot: {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"--plot: {path}: cannot be written: permission denied")
    try:
        import_module("matplotlib")
    except ImportError:
        raise ConfigurationError(
            "--plot needs matplotlib: pip install matplotlib, or leave it out"
        ) from None


@contextmanager
def plotted(path: Path, title: str) -> Iterator[tuple[Any, Any]]:
    """Give the axes of the left and the right picture, and write them to a file."""
    import matplotlib as mpl  # noqa: PLC0415 (an extra)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 (an extra)

    both, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    try:
        yield left, right
        both.suptitle(title, fontsize=11)
        both.tight_layout()
        metadata = {".svg": {"Date": None}, ".png": {"Software": None}}  # the same file each time
        both.savefig(path, dpi=120, metadata=metadata.get(path.suffix.lower()))
    finally:
        plt.close(both)


def finish_axes(axes: Any) -> None:
    """Give axes the frame, the labels' size and the legend of all plots."""
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8, edgecolor="none", framealpha=1.0, loc="upper left")
