"""Draws a run as a picture: who waited, what ran on which GPU when, and how much of the GPUs was given out."""

from __future__ import annotations

import colorsys
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .report import FrameStep, levels

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

WIDTH = 1600
MARGIN = 32
LABELS = 190
"""Room for the names of the lanes."""
ROW = 13
SLOTS_MAX = 8
"""Rows of a GPU's lane; what a GPU held beyond that many at once shares the last row."""
CHART = 110
BACKGROUND = (13, 16, 28)
PANEL = (20, 25, 42)
GRID = (44, 52, 78)
TEXT = (226, 232, 244)
QUIET = (140, 151, 178)
LINE = (97, 214, 178)
TINT_OF_CPU = (150, 158, 182)

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class TimelineRow:
    """One GPU, or the CPU for what asked for none: the steps by row."""

    title: str
    detail: str
    rows: list[list[FrameStep]]


def timeline_png(
    steps: Sequence[FrameStep],
    gpus: Sequence[tuple[str, str]],
    title: str,
    subtitle: str,
    colours: int,
    short: str = "",
) -> bytes:
    """The picture as PNG bytes. *gpus*: (uuid, model) by index. *colours*: how many frames there are to tell apart.
    *short*: what the jobs wait for."""
    from PIL import Image, ImageDraw

    began = min(step.ready_at for step in steps)
    span = max(0.001, max(step.ended_at for step in steps) - began)
    tick = nice_step(span / 10)
    lanes = lay_out(steps, gpus)
    waiting = sorted(steps, key=lambda step: (step.ready_at, step.placed_at, step.name))
    line = max(1, min(4, 200 // len(waiting)))

    top_queue = MARGIN + 96
    top_lanes = top_queue + 30 + line * len(waiting) + 24 + 26
    top = top_lanes
    tops = []
    for lane in lanes:
        tops.append(top)
        top += len(lane.rows) * ROW + 10
    top_chart = top + 40
    height = top_chart + CHART + 62
    image = Image.new("RGB", (WIDTH, height), BACKGROUND)
    draw = ImageDraw.Draw(image)
    paint = _Painter(draw, began, (WIDTH - LABELS - 2 * MARGIN) / span, colours)

    paint.text(MARGIN, MARGIN - 6, title, 26, TEXT)
    paint.text(MARGIN, MARGIN + 28, subtitle, 15, QUIET)
    _legend(paint, steps, colours, MARGIN + 58)
    ticks = [count * tick for count in range(math.floor(span / tick + 1e-9) + 1)]

    why = f". Short is {short}" if short else ""
    paint.text(MARGIN, top_queue, f"waiting for room: {len(waiting)} jobs, one line each{why}", 15, TEXT)
    bottom = top_queue + 26 + line * len(waiting)
    paint.panel(top_queue + 24, bottom + 2, ticks)
    for row, step in enumerate(waiting):
        y = top_queue + 25 + row * line
        paint.bar(step.ready_at, step.placed_at, y, y + max(1, line - 1), paint.colour(step))

    paint.text(MARGIN, top_lanes - 24, "on the GPUs: pale while starting, full while running", 15, TEXT)
    for lane, lane_top in zip(lanes, tops, strict=True):
        lane_bottom = lane_top + len(lane.rows) * ROW
        paint.panel(lane_top, lane_bottom, ticks)
        paint.text(MARGIN, lane_top + 1, lane.title, 14, TEXT)
        if len(lane.rows) > 2:
            paint.text(MARGIN, lane_top + 19, lane.detail, 12, QUIET)
        for row, row_steps in enumerate(lane.rows):
            y = lane_top + row * ROW
            for step in row_steps:
                colour = paint.colour(step)
                paint.bar(step.placed_at, step.started_at, y + 1, y + ROW - 3, _mixed(colour, PANEL, 0.6))
                paint.bar(step.started_at, step.ended_at, y + 1, y + ROW - 3, colour)

    _chart(paint, steps, len(gpus), top_chart, ticks)
    paint.axis(top_chart + CHART + 4, ticks)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def nice_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below *least*."""
    power = 10.0 ** math.floor(math.log10(max(least, 1e-6)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def lay_out(steps: Sequence[FrameStep], gpus: Sequence[tuple[str, str]]) -> list[TimelineRow]:
    """Lanes in order of GPU index, then the CPU; steps that overlap in time get rows of their own."""
    lanes = []
    for index, (uuid, model) in enumerate(gpus):
        held = [step for step in steps if uuid in step.gpu_uuids]
        least = max((round(1 / step.gpu_share) for step in held if step.gpu_share), default=1)
        lanes.append(TimelineRow(f"GPU {index}", model, _rows(held, min(least, SLOTS_MAX))))
    rest = [step for step in steps if not step.gpu_uuids]
    if rest:
        lanes.append(TimelineRow("CPU", "", _rows(rest, 1)))
    return lanes


def _rows(steps: Sequence[FrameStep], least: int) -> list[list[FrameStep]]:
    rows: list[list[FrameStep]] = [[] for _ in range(least)]
    for step in sorted(steps, key=lambda step: step.placed_at):
        free = next((row for row in rows if not row or row[-1].ended_at <= step.placed_at), None)
        if free is None:
            if len(rows) < SLOTS_MAX:
                rows.append([])
            free = rows[-1]
        free.append(step)
    return rows


class _Painter:
    """Draws in terms of time and colour."""

    def __init__(self, draw: ImageDraw, began: float, pixels_per_s: float, colours: int) -> None:
        self._draw = draw
        self._began = began
        self._pixels_per_s = pixels_per_s
        self._colours = colours

    def x(self, moment: float) -> float:
        """Where a moment (seconds since the epoch) is."""
        return MARGIN + LABELS + (moment - self._began) * self._pixels_per_s

    def text(self, x: float, y: float, text: str, size: int, colour: Colour, anchor: str = "la") -> None:
        from PIL import ImageFont

        self._draw.text((x, y), text, font=ImageFont.load_default(size), fill=colour, anchor=anchor)

    def panel(self, top: float, bottom: float, ticks: Sequence[float]) -> None:
        self._draw.rectangle((MARGIN + LABELS, top, WIDTH - MARGIN, bottom), fill=PANEL)
        for tick in ticks:
            x = self.x(self._began + tick)
            self._draw.line((x, top, x, bottom), fill=GRID)

    def bar(self, since: float, until: float, top: float, bottom: float, colour: Colour) -> None:
        left = self.x(since)
        self._draw.rectangle((left, top, max(left + 1, self.x(until) - 1), bottom), fill=colour)

    def lines(self, points: Sequence[tuple[float, float]], colour: Colour, fill_to: float) -> None:
        self._draw.polygon(
            [(points[0][0], fill_to), *points, (points[-1][0], fill_to)], fill=_mixed(colour, PANEL, 0.7)
        )
        self._draw.line(points, fill=colour, width=2)

    def rule(self, y: float, colour: Colour) -> None:
        self._draw.line((MARGIN + LABELS, y, WIDTH - MARGIN, y), fill=colour)

    def axis(self, y: float, ticks: Sequence[float]) -> None:
        for tick in ticks:
            self.text(self.x(self._began + tick), y, f"{tick:.10g} s", 13, QUIET, "ma")
        self.text(MARGIN + LABELS, y + 22, "time since the first job was submitted", 13, QUIET)

    def swatch(self, x: float, y: float, colour: Colour) -> None:
        self._draw.rectangle((x, y, x + 14, y + 14), fill=colour)

    def width(self, text: str, size: int) -> float:
        from PIL import ImageFont

        return float(self._draw.textlength(text, font=ImageFont.load_default(size)))

    def colour(self, step: FrameStep) -> Colour:
        if step.kind != "tile":
            return TINT_OF_CPU
        colour = frame_colour(step.frame, self._colours)
        # Two shades, so that neighbours in time stay apart; by the name, so that they are the same in every run.
        return colour if sum(step.name.encode()) % 2 == 0 else _mixed(colour, BACKGROUND, 0.22)


def frame_colour(frame: int, frames: int) -> Colour:
    """From blue through rose to gold along the zoom."""
    part = frame / max(1, frames - 1)
    hue = (0.58 + 0.55 * part) % 1.0
    red, green, blue = colorsys.hls_to_rgb(hue, 0.62, 0.78)
    return round(red * 255), round(green * 255), round(blue * 255)


def _legend(paint: _Painter, steps: Sequence[FrameStep], colours: int, y: float) -> None:
    x = float(MARGIN)
    entries = [(f"frame {number + 1}", frame_colour(number, colours)) for number in sorted({s.frame for s in steps})]
    if len(entries) > 10:
        entries = [entries[place * (len(entries) - 1) // 9] for place in range(10)]
    if any(step.kind != "tile" for step in steps):
        entries.append(("stitching", TINT_OF_CPU))
    for name, colour in entries:
        paint.swatch(x, y, colour)
        paint.text(x + 20, y - 1, name, 14, TEXT)
        x += 20 + paint.width(name, 14) + 22


def _chart(paint: _Painter, steps: Sequence[FrameStep], gpus: int, top: float, ticks: Sequence[float]) -> None:
    """Share of all GPUs allocated, over time."""
    course = levels(steps)
    peak = max((share for _, share, _ in course), default=0.0)
    whole = float(max(1, math.ceil(peak)))
    paint.text(MARGIN, top - 24, f"GPUs allocated, of {gpus}", 15, TEXT)
    paint.panel(top, top + CHART, ticks)
    for part in (0.0, 0.5, 1.0):
        y = top + CHART * (1 - part)
        paint.rule(y, GRID)
        paint.text(MARGIN + LABELS - 10, y, f"{whole * part:.3g}", 13, QUIET, "rm")
    points: list[tuple[float, float]] = []
    level = top + CHART
    for moment, share, _ in course:
        x = paint.x(moment)
        points.append((x, level))
        level = top + CHART * (1 - share / whole)
        points.append((x, level))
    if points:
        paint.lines(points, LINE, top + CHART)


def _mixed(colour: Colour, other: Colour, part: float) -> Colour:
    """*colour* with *part* of *other* in it."""
    red, green, blue = (round(one * (1 - part) + two * part) for one, two in zip(colour, other, strict=True))
    return red, green, blue
