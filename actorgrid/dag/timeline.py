"""When each step of a graph ran, and where: a Gantt chart with a row for each thing that ran at once on a host or GPU.

The chain on which the end hung is marked and told below. Under a bar lies a line as long as the step was expected to
take; where there is a plan, its end is marked.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from actorgrid.errors import InvalidGraph

from .picture import seconds, told
from .step_view import PLANNED, GraphView, StepView, shortened
from .svg import CRITICAL, GRID, INK, QUIET, TIMES, SvgWriter, colours_of, text_width

WIDTH, LABELS, MARGIN, HEAD = 1_280.0, 190.0, 24.0, 92.0
ROW_MAX, ROW_MIN, ROWS_HEIGHT = 20.0, 3.0, 1_600.0
KINDS = ("#4c78a8", "#72b7b2", "#b279a2", "#eeca3b", "#9d755d", "#54a24b", "#ff9da6", "#79706e")
"""Colours of bars, by what the steps do; the most frequent first. What is left has the last."""
FAILED = colours_of("failed")[1]
TOLD_MAX = 14
"""Steps of the critical path that are told below."""
NARROW = 0.6
"""Bars narrower than that are drawn together with their neighbours: nobody sees them, and there may be 100,000."""
TICKS = 10
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class TimelineLane:
    """What ran one after the other in one place: *steps* by number, in the order of their starts."""

    host: str
    device: str
    steps: list[int]


def lanes_of(view: GraphView) -> list[TimelineLane]:
    """The steps that have begun, by host, then by device (without one: ``cpu``), each in as few lanes as there were
    steps at once. A step on several devices is in a lane of each."""
    places: dict[tuple[str, int], list[int]] = {}
    for number, step in enumerate(view.steps):
        if step.start_s is None or step.end_s is None or step.merges:
            continue
        for place in step.places:
            places.setdefault(place, []).append(number)
    found = []
    for host, device in sorted(places, key=lambda each: (_natural(view.hosts.get(each[0], each[0])), each)):
        numbers = places[host, device]
        lanes: list[TimelineLane] = []
        busy: list[tuple[float, int]] = []
        free: list[int] = []
        for number in sorted(numbers, key=lambda each: (_start(view.steps[each]), _end(view.steps[each]), each)):
            start = _start(view.steps[number])
            while busy and busy[0][0] <= start + 1e-6:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if free:
                lane = heapq.heappop(free)
            else:
                lane = len(lanes)
                lanes.append(TimelineLane(host, "cpu" if device < 0 else f"gpu {device}", []))
            lanes[lane].steps.append(number)
            heapq.heappush(busy, (_end(view.steps[number]), lane))
        found += lanes
    return found


def draw_timeline(view: GraphView) -> str:
    """The chart as SVG. Raises InvalidGraph while nothing has begun."""
    lanes = lanes_of(view)
    if not lanes:
        raise InvalidGraph(
            "there is no timeline yet", asked=view.title, found="no step has begun", hint="wait, or draw the graph"
        )
    path = view.critical_path()
    row = max(ROW_MIN, min(ROW_MAX, ROWS_HEIGHT / len(lanes)))
    last_s = max(view.end_s, view.planned_s or 0.0, 1e-6)
    scale = (WIDTH - LABELS - 2 * MARGIN) / last_s
    chart = _Chart(view, set(path), scale, row)
    tops, bottom = chart.rows(lanes)
    svg = chart.svg
    svg.text(MARGIN, MARGIN + 14, shortened(view.title, 90), 18, bold=True)
    svg.text(MARGIN, MARGIN + 34, _summary(view), 12, QUIET)
    chart.legend(MARGIN + 54)
    chart.axis(last_s, bottom)
    for lane, top in zip(lanes, tops, strict=True):
        chart.bars(lane, top)
    chart.links(lanes, tops, path)
    chart.plan_mark(bottom)
    bottom = chart.told_path(path, bottom + 52)
    return svg.document(WIDTH, bottom + MARGIN, view.title)


class _Chart:
    """What is drawn at which scale: pixels a second."""

    def __init__(self, view: GraphView, critical: set[int], scale: float, row: float) -> None:
        self.svg = SvgWriter()
        self._view = view
        self._critical = critical
        self._scale = scale
        self._row = row
        kinds = Counter(step.kin for step in view.steps if step.start_s is not None and not step.merges)
        common = kinds.most_common()
        own = common if len(common) <= len(KINDS) else common[: len(KINDS) - 1]
        self._colour = {kin: KINDS[place] for place, (kin, _) in enumerate(own)}
        self._others = sum(count for kin, count in common if kin not in self._colour)
        self._counts = dict(own)

    def x(self, time_s: float) -> float:
        return MARGIN + LABELS + time_s * self._scale

    def rows(self, lanes: Sequence[TimelineLane]) -> tuple[list[float], float]:
        """The top of each lane, and where they end; hosts and devices are named beside them."""
        tops = []
        y = HEAD + MARGIN
        host, device = None, None
        named_at = -100.0
        for lane in lanes:
            if lane.host != host:
                y += 10 if host is not None else 0
                self.svg.line(MARGIN, y - 3, WIDTH - MARGIN, y - 3, GRID)
            if (lane.host, lane.device) != (host, device):
                if lane.host == host:
                    y += 3
                name = self._view.hosts.get(lane.host, lane.host)
                y = max(y, named_at + 13)
                named_at = y
                if lane.host != host:
                    self.svg.text(MARGIN, y + 11, shortened(name, 20), 12, bold=True)
                self.svg.text(MARGIN + LABELS - 10, y + 11, lane.device, 11, QUIET, anchor="end")
                host, device = lane.host, lane.device
            tops.append(y)
            y += self._row
        return tops, max(y, named_at + 16)

    def axis(self, last_s: float, bottom: float) -> None:
        """A line for each tick, with its time."""
        step = _nice(last_s / TICKS)
        for count in range(math.floor(last_s / step + 1e-9) + 1):
            x = self.x(count * step)
            self.svg.line(x, HEAD + MARGIN - 6, x, bottom + 4, GRID)
            self.svg.text(x, bottom + 18, seconds(count * step) if count else "0", 10, QUIET, anchor="middle")

    def bars(self, lane: TimelineLane, top: float) -> None:
        """The bars of a lane; neighbours that are too narrow to be seen are one."""
        together: list[int] = []
        for number in lane.steps:
            step = self._view.steps[number]
            x, width = self.x(_start(step)), (_end(step) - _start(step)) * self._scale
            alike = together and self._marks(together[-1]) == self._marks(number)
            if not alike or width >= NARROW or x > self.x(_end(self._view.steps[together[-1]])) + NARROW:
                self._narrow(together, top)
                together = []
            if width >= NARROW:
                self._bar(step, x, top, width, critical=number in self._critical)
            else:
                together.append(number)
        self._narrow(together, top)

    def _marks(self, number: int) -> tuple[bool, bool]:
        return number in self._critical, self._view.steps[number].state == "failed"

    def _narrow(self, numbers: list[int], top: float) -> None:
        if not numbers:
            return
        first, last = self._view.steps[numbers[0]], self._view.steps[numbers[-1]]
        x = self.x(_start(first))
        width = max(NARROW, self.x(_end(last)) - x)
        title = told(first) if len(numbers) == 1 else f"{len(numbers):,} short steps, {first.id} to {last.id}"
        critical, failed = self._marks(numbers[0])
        stroke = CRITICAL if critical else ""
        self.svg.rect(x, top, width, self._row - 1, FAILED if failed else self._kind(first), stroke, title=title)

    def _bar(self, step: StepView, x: float, top: float, width: float, *, critical: bool) -> None:
        height = self._row - (4 if self._row >= 10 else 1)
        stroke = CRITICAL if critical else (FAILED if step.state == "failed" else "")
        fill = colours_of("failed")[0] if step.state == "failed" else self._kind(step)
        self.svg.rect(
            x, top, width, height, fill, stroke, line=min(2.0, width / 3) if critical else 1.2,
            round=2 if width > 4 else 0,
            title=told(step), dashed=step.state == "running",
        )  # fmt: skip
        if step.expected_s is not None and step.state != PLANNED and self._row >= 10:
            end = min(WIDTH - MARGIN, x + step.expected_s * self._scale)
            self.svg.line(x, top + height + 1.5, end, top + height + 1.5, INK, 1.4)
        room = int((width - 6) / (0.62 * 10))
        if self._row >= 13 and room >= 3:
            self.svg.text(x + 3, top + height / 2 + 3.5, shortened(step.id, room), 10, INK)

    def _kind(self, step: StepView) -> str:
        return self._colour.get(step.kin, KINDS[-1])

    def links(self, lanes: Sequence[TimelineLane], tops: Sequence[float], path: Sequence[int]) -> None:
        """From each step of the critical path to the next, across lanes."""
        top_of: dict[int, float] = {}
        for lane, top in zip(lanes, tops, strict=True):
            for number in lane.steps:
                top_of.setdefault(number, top)
        middle = self._row / 2
        drawn = [number for number in path if number in top_of]
        links: dict[tuple[int, int, float, float], None] = {}  # by whole pixels: more would not be seen
        for first, second in pairwise(drawn):
            x1, x2 = self.x(_end(self._view.steps[first])), self.x(_start(self._view.steps[second]))
            if top_of[first] != top_of[second] or x2 - x1 > NARROW:
                links[round(x1), round(max(x1, x2)), top_of[first] + middle, top_of[second] + middle] = None
        for begin, end, y1, y2 in links:
            self.svg.line(begin, y1, end, y2, CRITICAL, 1.4)

    def plan_mark(self, bottom: float) -> None:
        """Where the plan ends."""
        planned_s = self._view.planned_s
        if planned_s is None or abs(planned_s - self._view.end_s) * self._scale < 1:
            return
        x = self.x(planned_s)
        self.svg.line(x, HEAD + MARGIN - 14, x, bottom + 4, INK, 1.4, dashes="5 4")
        anchor = "end" if x > WIDTH / 2 else ""
        self.svg.text(x + (-5 if anchor else 5), HEAD + MARGIN - 8, "as planned", 10, INK, anchor=anchor)

    def legend(self, y: float) -> None:
        """What the colours mean."""
        x = MARGIN
        shown = [(f"{shortened(kin, 24)} {TIMES} {count:,}", self._colour[kin]) for kin, count in self._counts.items()]
        if self._others:
            shown.append((f"others {TIMES} {self._others:,}", KINDS[-1]))
        for label, colour in shown:
            if x + 18 + text_width(label, 11) > WIDTH - MARGIN:
                y += 18
                x = MARGIN
            self.svg.rect(x, y - 10, 12, 12, colour, round=2)
            self.svg.text(x + 18, y, label, 11)
            x += 34 + text_width(label, 11)

    def told_path(self, path: Sequence[int], y: float) -> float:
        """The critical path in words; gives where that ends."""
        steps = [self._view.steps[number] for number in path if not self._view.steps[number].merges]
        if not steps:
            return y
        self.svg.line(MARGIN, y - 4, MARGIN + 22, y - 4, CRITICAL, 2.4)
        self.svg.text(MARGIN + 30, y, f"Critical path: {len(steps):,} steps", 12, bold=True)
        columns = (MARGIN + 30, MARGIN + 330, MARGIN + 470, MARGIN + 610, MARGIN + 750)
        y += 20
        for x, head in zip(columns, ("step", "waited before", "took", "expected", "on"), strict=True):
            self.svg.text(x, y, head, 10, QUIET)
        shown = steps if len(steps) <= TOLD_MAX else [*steps[: TOLD_MAX // 2], None, *steps[-TOLD_MAX // 2 :]]
        before_s = 0.0
        for step in shown:
            y += 17
            if step is None:
                self.svg.text(columns[0], y, f"... {len(steps) - TOLD_MAX:,} more", 11, QUIET)
                before_s = _end(steps[-TOLD_MAX // 2 - 1])
                continue
            waited_s = max(0.0, _start(step) - before_s)
            expected = "-" if step.expected_s is None else seconds(step.expected_s)
            where = " ".join([self._view.hosts.get(step.host, step.host), *(f"gpu {n}" for n in step.gpu_indexes)])
            words = (shortened(step.id, 42), seconds(waited_s), seconds(_end(step) - _start(step)), expected)
            for x, word in zip(columns, (*words, where), strict=True):
                self.svg.text(x, y, word, 11)
            before_s = _end(step)
        return y


def _summary(view: GraphView) -> str:
    parts = [f"{len(view.steps):,} steps"]
    if view.detail:
        parts.append(view.detail)
    if view.end_s:
        states = view.states
        word = "takes" if PLANNED in states else "so far" if "running" in states else "took"
        parts.append(f"{word} {seconds(view.end_s)}")
    if view.planned_s is not None and PLANNED not in view.states:
        parts.append(f"planned {seconds(view.planned_s)}")
    if view.at_least_s is not None:
        parts.append(f"at least {seconds(view.at_least_s)}")
    if any(step.expected_s is not None and step.state != PLANNED for step in view.steps):
        parts.append("a line under a bar: as expected")
    return " · ".join(parts)


def _start(step: StepView) -> float:
    return step.start_s or 0.0


def _end(step: StepView) -> float:
    return step.end_s or 0.0


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts host-2 before host-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


def _nice(step: float) -> float:
    """1, 2 or 5 times a power of ten, not below *step*; of minutes and hours what people count in."""
    for whole in (60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400):
        if 20 < step <= whole:
            return float(whole)
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))
