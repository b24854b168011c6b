"""Pictures of a replay, PNG or SVG, with matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actorgrid.errors import BadRequest, DataDirUnusable, StartFailed

from .runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
COLOURS = ("#0b6e99", "#d1495b", "#2e933c", "#8a4fff", "#e08e0b", "#5c5c5c", "#00a3a3", "#a63d7c")
"""Told apart by people who see few colours too; lines beyond these differ by their dashes."""
DASHES = ("-", "--", ":", "-.")
SHOWN_FROM = 0.7
DAY_S = 86400.0


def check(path: Path) -> None:
    """Raises BadRequest for a file of another kind, StartFailed where matplotlib is missing."""
    from importlib.util import find_spec

    if path.suffix.lower() not in SUFFIXES:
        raise BadRequest(
            f"{path} is no kind of picture we draw", asked=str(path), hint=f"end it in {' or '.join(SUFFIXES)}"
        )
    if find_spec("matplotlib") is None:
        raise StartFailed("pictures need matplotlib", found="not installed", hint="pip install 'actorgrid[plot]'")


def draw(path: Path, mode: str, title: str, runs: Sequence[Run]) -> None:
    """Draw *runs* into *path*. The same runs give the same file. Raises as :func:`check`, and DataDirUnusable."""
    check(path)
    import matplotlib
    from matplotlib.figure import Figure

    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    style: Any = {"svg.hashsalt": "actorgrid", "svg.fonttype": "none", "font.size": 9, "axes.titlesize": 10}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(11, 8.2 if mode == "queue" else 4.6), layout="constrained")
        if mode == "inflate":
            _draw_inflation(figure, groups)
        else:
            _draw_time(figure, groups, mode)
        figure.suptitle(title, fontsize=11)
        try:
            metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
            figure.savefig(path, dpi=150, metadata=metadata)
        except OSError as error:
            raise DataDirUnusable(f"{path} cannot be written", found=str(error), hint="choose another place") from error


def _look(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
        "linewidth": 1.6,
    }


def _tidy(axes: Axes, title: str, across: str, up: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_inflation(figure: Figure, groups: dict[str, list[Run]]) -> None:
    left, right = figure.subplots(1, 2)
    end = max(run.curve[-1]["arrived"] for group in groups.values() for run in group)
    begin = SHOWN_FROM if end > 1 else 0.0
    left.plot([100 * begin, 100 * min(1, end), 100 * end], [100 * begin, 100 * min(1, end), 100 * min(1, end)],
              color="#999999", linestyle=":", linewidth=1, label="all that arrived, all there is")  # fmt: skip
    lowest = 100.0
    for number, (label, group) in enumerate(groups.items()):
        arrived = [100 * point["arrived"] for point in group[0].curve]
        for axes, name in ((left, "allocated"), (right, "fragmented")):
            rows = [[100 * point[name] for point in run.curve] for run in group]
            shortest = min(len(row) for row in rows)
            columns = list(zip(*(row[:shortest] for row in rows), strict=True))
            means = [sum(column) / len(column) for column in columns]
            axes.plot(arrived[:shortest], means, label=label, **_look(number))
            if len(rows) > 1:
                lows, highs = [min(column) for column in columns], [max(column) for column in columns]
                axes.fill_between(arrived[:shortest], lows, highs, color=COLOURS[number % len(COLOURS)], alpha=0.15)
            if name == "allocated":
                lowest = min(lowest, *(mean for at, mean in zip(arrived, means, strict=False) if at >= 100 * begin))
    _tidy(left, "GPU share given out", "GPU share asked for so far, % of the cluster", "% of the cluster")
    left.set_xlim(100 * begin, 100 * end)
    left.set_ylim(max(0.0, lowest - 1), 101)
    left.legend(frameon=False, loc="lower right")
    _tidy(
        right,
        "Free share that is a fragment (FGD's F)",
        "GPU share asked for so far, % of the cluster",
        "% of the free",
    )
    right.set_xlim(0, 100 * end)
    right.set_ylim(0, 101)


def _draw_time(figure: Figure, groups: dict[str, list[Run]], mode: str) -> None:
    """Over time, of the first seed: seeds do not move arrivals."""
    if mode == "queue":
        ((allocated, waiting), (queueing, completion)) = figure.subplots(2, 2)
        _draw_moments(waiting, groups, "waiting", 1)
        _tidy(waiting, "Jobs waiting", "days", "jobs")
        waiting.set_ylim(bottom=0)
        _draw_waits(queueing, groups)
        _draw_completion(completion, groups)
    else:
        allocated, fragmented = figure.subplots(1, 2)
        _draw_moments(fragmented, groups, "fragmented", 100)
        _tidy(fragmented, "Free share that is a fragment (FGD's F)", "days", "% of the free")
        fragmented.set_ylim(0, 101)
    _draw_moments(allocated, groups, "allocated", 100)
    _tidy(allocated, "GPU share given out", "days", "% of the cluster")
    allocated.set_ylim(0, 101)
    figure.legend(*allocated.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)


def _draw_moments(axes: Axes, groups: dict[str, list[Run]], name: str, factor: float) -> None:
    begin = min(group[0].curve[0]["at_s"] for group in groups.values())
    for number, (label, group) in enumerate(groups.items()):
        days = [(moment["at_s"] - begin) / DAY_S for moment in group[0].curve]
        values = [factor * moment[name] for moment in group[0].curve]
        axes.step(days, values, where="post", label=label, **{**_look(number), "linewidth": 0.8, "alpha": 0.85})


def _draw_completion(axes: Axes, groups: dict[str, list[Run]]) -> None:
    for number, group in enumerate(groups.values()):
        hours = [seconds / 3600 for seconds in group[0].jct_s if seconds > 0]
        shares = [100 * (at + 1) / len(hours) for at in range(len(hours))]
        axes.step(hours, shares, where="post", **_look(number))
    _tidy(axes, "Completion time", "hours from arrival to end", "% of the jobs")
    axes.set_xscale("log")
    axes.set_ylim(0, 101)


def _draw_waits(axes: Axes, groups: dict[str, list[Run]]) -> None:
    rows = list(dict.fromkeys(row for group in groups.values() for row in group[0].figures["waiting_s_by_gpus"]))
    width = 0.8 / len(groups)
    for number, group in enumerate(groups.values()):
        waits = group[0].figures["waiting_s_by_gpus"]
        places = [rows.index(row) + (number - (len(groups) - 1) / 2) * width for row in waits]
        colour = COLOURS[number % len(COLOURS)]
        axes.bar(places, [each["mean"] / 3600 for each in waits.values()], width * 0.9, color=colour)
        axes.scatter(places, [each["p99"] / 3600 for each in waits.values()], marker="_", s=60, color=colour)
    axes.set_xticks(range(len(rows)), rows)
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_ylim(bottom=0)
    _tidy(axes, "Waiting by size: mean (bar), 99th percentile (dash)", "GPUs of the job", "hours")
