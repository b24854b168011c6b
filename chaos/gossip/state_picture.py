"""Picture of the shared state at scale, PNG or SVG, with matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actorgrid.errors import DataDirUnusable

from .picture import SETTINGS
from .state_measures import Spread

COLOURS = ("#0b6e99", "#2e933c", "#e09f3e", "#d1495b")


@dataclass(frozen=True, slots=True)
class StateFigures:
    """What the picture shows; of each line its label and its points.

    ``spreads``: how soon writes were everywhere. ``bytes_by_hosts``: bytes a second that a host sent, by the number of
    hosts. ``healed_by_delay`` and ``burst_by_line``: seconds until the same, by ms and by Mbit/s.
    """

    spreads: Mapping[str, Spread]
    bytes_by_hosts: Mapping[str, Sequence[tuple[int, float]]]
    healed_by_delay: Mapping[str, Sequence[tuple[float, float]]]
    burst_by_line: Mapping[str, Sequence[tuple[float, float]]]


def draw_state(path: Path, title: str, figures: StateFigures) -> None:
    """Draw *figures* into *path*. The same figures give the same file. Raises DataDirUnusable."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(11, 8.6), layout="constrained")
        axes = figure.subplots(2, 2)
        for (label, each), colour in zip(figures.spreads.items(), COLOURS, strict=False):
            ordered = sorted(each.everywhere)
            shares = [100.0 * (number + 1) / len(ordered) for number in range(len(ordered))]
            axes[0][0].step([0.0, *ordered], [0.0, *shares], where="post", label=label, color=colour, linewidth=1.6)
        _finish(axes[0][0], "A write, until all hosts have it", "seconds (a round is one)", "% of writes")
        axes[0][0].set_xlim(left=0.0)
        _points(axes[0][1], figures.bytes_by_hosts)
        _by_steps(axes[0][1], figures.bytes_by_hosts)
        _finish(axes[0][1], "Sent by each host", "hosts", "bytes a second")
        _points(axes[1][0], figures.healed_by_delay)
        _finish(axes[1][0], "After a cut of half a minute, until all hold the same", "ms between sites", "seconds")
        _points(axes[1][1], figures.burst_by_line)
        _by_steps(axes[1][1], figures.burst_by_line)
        _finish(axes[1][1], "A burst of writes at one site, until all hold the same", "Mbit/s of a line", "seconds")
        figure.suptitle(title, fontsize=11)
        metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
        try:
            figure.savefig(path, dpi=110, metadata=metadata)
        except OSError as error:
            raise DataDirUnusable(f"{path} cannot be written", found=str(error), hint="choose another place") from error


def _points(axis: Any, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    for (label, points), colour in zip(lines.items(), COLOURS, strict=False):
        axis.plot(*zip(*points, strict=True), marker="o", markersize=4, label=label, color=colour, linewidth=1.6)


def _by_steps(axis: Any, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """A scale of ratios with the values that were measured, and no others."""
    from matplotlib.ticker import NullLocator

    values = sorted({value for points in lines.values() for value, _ in points})
    axis.set_xscale("log")
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.xaxis.set_minor_locator(NullLocator())


def _finish(axis: Any, title: str, across: str, up: str) -> None:
    axis.set_title(title, loc="left")
    axis.set_xlabel(across)
    axis.set_ylabel(up)
    axis.set_ylim(bottom=0.0)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
