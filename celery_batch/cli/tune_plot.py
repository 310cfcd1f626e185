"""The plot of ``celery batch tune``: throughput and latency against batch size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery_batch.amounts import figure
from celery_batch.errors import ConfigurationError
from celery_batch.tuning.curve import MIDDLE, SLOW, Curve
from celery_batch.tuning.propose import Proposal

__all__ = ["Plot"]

#: Red and greys differ in lightness and marks too, for who sees no red and for printers.
_OURS, _PLAIN, _LIMIT = "#b03a2e", "#566573", "#7f8c8d"

_KINDS = (".png", ".svg", ".pdf")


class Plot:
    """
    A picture of what was measured and is proposed.

    Args:
        path: Where it goes; the suffix is its kind.

    Raises:
        ConfigurationError: The kind is not known, or matplotlib is not installed.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in _KINDS:
            raise ConfigurationError(f"--plot: {path}: must end in one of {', '.join(_KINDS)}")
        if not path.parent.is_dir():
            raise ConfigurationError(f"--plot: {path}: there is no folder {path.parent}")
        try:
            import matplotlib as mpl  # noqa: PLC0415 (an extra)
        except ImportError:
            raise ConfigurationError(
                "--plot needs matplotlib; pip install 'celery-batch[tune]', or leave it out"
            ) from None
        mpl.use("Agg")
        self._path = path

    def draw(self, task: str, device: str, curve: Curve, proposal: Proposal) -> None:
        """
        Draw it.

        Args:
            task: The task's name.
            device: Where its model was measured.
            curve: What was measured.
            proposal: What is proposed.
        """
        from matplotlib import pyplot as plt  # noqa: PLC0415 (an extra)

        figure_, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
        _throughput(left, curve, proposal)
        _latency(right, curve, proposal)
        for place in (left, right):
            _dress(place, curve, proposal)
        figure_.suptitle(f"{task} on {device}", fontsize=11)
        figure_.tight_layout()
        metadata = {".svg": {"Date": None}, ".png": {"Software": None}}
        figure_.savefig(self._path, dpi=120, metadata=metadata.get(self._path.suffix.lower()))
        plt.close(figure_)


def _throughput(place: Any, curve: Curve, proposal: Proposal) -> None:
    rates = [point.rate for point in curve.points]
    borne = [trial.bears for trial in proposal.sizes]
    latency = figure(proposal.goal.latency)
    place.plot(curve.sizes, rates, "o-", color=_PLAIN, label="items a second, batch after batch")
    place.plot(curve.sizes, borne, "s--", color=_OURS, label=f"requests a second within {latency}")
    size = proposal.chosen.policy.max_batch_size
    place.annotate(
        f"proposed: {size}", (size, 0.02), xycoords=("data", "axes fraction"),
        rotation=90, ha="center", va="bottom", fontsize=8, color=_OURS,
    )  # fmt: skip
    place.set_title("What one process answers in a second", fontsize=10)
    place.set_ylim(bottom=0, top=1.35 * max(rates))
    place.yaxis.set_major_formatter(lambda rate, _: f"{rate:,.0f}")


def _latency(place: Any, curve: Curve, proposal: Proposal) -> None:
    sizes, target = curve.sizes, proposal.goal.latency
    usual = [point.quantile(MIDDLE) for point in curve.points]
    slow = [point.quantile(SLOW) for point in curve.points]
    place.plot(sizes, usual, "o-", color=_PLAIN, label="one batch (shaded: up to p95)")
    place.fill_between(sizes, usual, slow, color=_PLAIN, alpha=0.2, linewidth=0)
    crowded = [2 * seconds for seconds in usual]
    place.plot(sizes, crowded, "s--", color=_OURS, label="just missed one, and then its own")
    place.axhline(target, color=_LIMIT, linestyle=":", label=f"target, {figure(target)}")
    place.set_title("How long it takes", fontsize=10)
    place.set_yscale("log")
    # Room above for the legend, and times as people write them.
    place.set_ylim(top=8 * max(target, *slow, *crowded))
    place.yaxis.set_major_formatter(lambda seconds, _: figure(seconds))


def _dress(place: Any, curve: Curve, proposal: Proposal) -> None:
    size = proposal.chosen.policy.max_batch_size
    place.axvline(size, color=_OURS, alpha=0.25, linewidth=8, zorder=0)
    place.set_xscale("log", base=2)
    place.set_xticks(curve.sizes, [str(each) for each in curve.sizes])
    place.minorticks_off()
    place.set_xlabel("items in a batch", fontsize=9)
    place.spines[["top", "right"]].set_visible(False)
    place.tick_params(labelsize=8)
    place.legend(fontsize=8, edgecolor="none", framealpha=1.0, loc="upper left")
