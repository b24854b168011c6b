"""Picture of deaths and joins at scale, PNG or SVG, with matplotlib (the extra ``plot``): how soon they are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from actorgrid.errors import DataDirUnusable

from .measures import Times

SETTINGS = {"svg.hashsalt": "actorgrid", "svg.fonttype": "none", "font.size": 9, "axes.titlesize": 10}


def draw(path: Path, title: str, died: Times, joined: Times) -> None:
    """Draw the shares of events over time into *path*. The same times give the same file. Raises DataDirUnusable."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(11, 4.8), layout="constrained")
        axes = figure.subplots(1, 2)
        lines = (
            (axes[0], "first suspicion, from the death on", "#0b6e99", died.first_suspicion),
            (axes[0], "declared dead, from the death on", "#d1495b", died.declared),
            (axes[1], "a death, from its declaration to all", "#d1495b", died.known_to_all),
            (axes[1], "a join, from its beginning to all", "#2e933c", joined.known_to_all),
        )
        for axis, label, colour, samples in lines:
            ordered = sorted(samples)
            shares = [100.0 * (number + 1) / len(ordered) for number in range(len(ordered))]
            axis.step([0.0, *ordered], [0.0, *shares], where="post", label=label, color=colour, linewidth=1.6)
        for axis, name in zip(axes, ("Found out", "Known to all"), strict=True):
            axis.set_title(name, loc="left")
            axis.set_xlabel("seconds")
            axis.set_ylabel("% of events")
            axis.set_xlim(left=0.0)
            axis.grid(alpha=0.25, linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, -0.16))
        figure.suptitle(title, fontsize=11)
        metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
        try:
            figure.savefig(path, dpi=110, metadata=metadata)
        except OSError as error:
            raise DataDirUnusable(f"{path} cannot be written", found=str(error), hint="choose another place") from error
