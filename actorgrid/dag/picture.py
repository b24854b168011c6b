"""A graph as a picture: boxes in columns, coloured by state, with arrows from producers to those that take from them.

Small graphs have a box for each step. In larger ones steps that do the same at the same depth share a box, in which
each of them is a cell; of very large ones a box says only how many are in which state. What the end of the graph hung
on is marked, once steps have run or are planned.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from actorgrid.errors import InvalidGraph

from .layered_layout import lay_out
from .step_groups import COLUMNS_MAX, arrows_between, columns, each_alone, grouped
from .step_view import GraphView, StepView, shortened
from .svg import COLOURS, CRITICAL, INK, QUIET, TIMES, SvgWriter, colours_of, text_width

ALONE_MAX = 150
"""With more steps, some share a box."""
ALONE_ARROWS_MAX = 600
DRAWN_ALONE_MAX = 3_000
"""So many steps may have a box each, if that is asked for."""
DRAWN_ARROWS_MAX = 20_000
CELLS_MAX = 6_000
"""With more steps in shared boxes these have bars instead of cells."""
LABEL_CHARS = 26
CELL = 8.0
MARGIN, HEAD, FOOT = 24.0, 64.0, 44.0
ARROW, MANY_ARROWS = "#9aa5b8", "#6d7a91"
BAR_WIDTH, BAR_HEIGHT = 150.0, 10.0


def draw_graph(view: GraphView, group: str = "auto") -> str:
    """The picture as SVG. *group*: auto, always, or never.

    Raises InvalidGraph for more than 3,000 steps or 20,000 arrows that are not to share boxes.
    """
    steps = view.steps
    arrows = sum(len(step.producers) for step in steps)
    if group == "never" and (len(steps) > DRAWN_ALONE_MAX or arrows > DRAWN_ARROWS_MAX):
        raise InvalidGraph(
            "so large a graph is drawn with shared boxes only",
            asked=f"{len(steps)} steps and {arrows} arrows, each by itself",
            found=f"at most {DRAWN_ALONE_MAX} steps and {DRAWN_ARROWS_MAX} arrows",
            hint="leave --group out",
        )
    boxes = each_alone(steps)
    few = len(steps) <= ALONE_MAX and arrows <= ALONE_ARROWS_MAX and columns(steps, boxes) <= COLUMNS_MAX
    if group == "always" or (group == "auto" and not few):
        boxes = grouped(steps)
    between = arrows_between(steps, boxes)
    with_cells = sum(len(members) for members in boxes if len(members) > 1) <= CELLS_MAX
    drawn = [
        _StepBox(steps[members[0]]) if len(members) == 1 else _GroupBox(steps, members, with_cells) for members in boxes
    ]
    laid = lay_out([(box.width, box.height) for box in drawn], between)
    path = view.critical_path()
    box_of = {member: box for box, members in enumerate(boxes) for member in members}
    critical = {box_of[number] for number in path}
    marked = {(box_of[first], box_of[second]) for first, second in pairwise(path) if first in steps[second].producers}
    svg = SvgWriter()
    words = " · ".join(filter(None, [f"{len(steps):,} steps", view.detail]))
    svg.text(MARGIN, MARGIN + 14, shortened(view.title, 90), 18, bold=True)
    svg.text(MARGIN, MARGIN + 34, words, 12, QUIET)
    for arrow, way in sorted(laid.ways.items(), key=lambda each: each[0] in marked):
        on_path = arrow in marked
        width = 2.2 if on_path else min(5.0, 1.0 + math.log10(between[arrow]) * 1.2)
        colour = CRITICAL if on_path else (MANY_ARROWS if between[arrow] > 1 else ARROW)
        svg.way([(MARGIN + x, HEAD + MARGIN + y) for x, y in way], colour, width)
    for number, (box, (x, y)) in enumerate(zip(drawn, laid.corners, strict=True)):
        box.draw(svg, MARGIN + x, HEAD + MARGIN + y, critical=number in critical)
    bottom = HEAD + MARGIN + laid.height + FOOT
    right = _legend(svg, view, bottom, with_path=len(path) > 1)
    width = max(laid.width + 2 * MARGIN, right + MARGIN, text_width(words, 12) + 2 * MARGIN)
    return svg.document(width, bottom + MARGIN, view.title)


class _StepBox:
    """The box of one step."""

    def __init__(self, step: StepView) -> None:
        self._step = step
        self._label = shortened(step.id, LABEL_CHARS)
        self._line = _line(step)
        self.width = max(64.0, 18 + max(text_width(self._label, 11.5, bold=True), text_width(self._line, 9.5)))
        self.height = 36.0

    def draw(self, svg: SvgWriter, x: float, y: float, *, critical: bool) -> None:
        step = self._step
        fill, border = colours_of(step.state)
        stroke, line = (CRITICAL, 2.4) if critical else (border, 1.2)
        svg.rect(x, y, self.width, self.height, fill, stroke, line=line, round=6, title=told(step))
        svg.text(x + self.width / 2, y + 15, self._label, 11.5, anchor="middle", bold=True)
        svg.text(x + self.width / 2, y + 28, self._line, 9.5, QUIET, anchor="middle")


class _GroupBox:
    """The box of steps that do the same: a cell for each, or a bar for all."""

    def __init__(self, steps: Sequence[StepView], members: Sequence[int], with_cells: bool) -> None:
        self._members = [steps[member] for member in members]
        kin = {step.kin for step in self._members}
        name = kin.pop() if len(kin) == 1 else f"{len(kin)} kinds of steps"
        self._label = f"{shortened(name, LABEL_CHARS)} {TIMES} {len(members):,}"
        self._counts = Counter(step.state for step in self._members)
        self._line = ", ".join(f"{count:,} {state}" for state, count in self._counts.most_common(2))
        times = [step.took_s for step in self._members if step.took_s is not None]
        if times:
            self._line += f" · {seconds(sum(times) / len(times))} each"
        self._across = min(len(members), max(10, math.ceil(math.sqrt(len(members) * 1.5)))) if with_cells else 0
        inner = self._across * CELL if with_cells else BAR_WIDTH
        self.width = 20 + max(inner, text_width(self._label, 11.5, bold=True), text_width(self._line, 9.5))
        rows = math.ceil(len(members) / self._across) if with_cells else 0
        self.height = 42 + (rows * CELL if with_cells else BAR_HEIGHT)

    def draw(self, svg: SvgWriter, x: float, y: float, *, critical: bool) -> None:
        stroke, line = (CRITICAL, 2.4) if critical else (QUIET, 1.0)
        svg.rect(x, y, self.width, self.height, "#fafbfd", stroke, line=line, round=8)
        svg.text(x + self.width / 2, y + 16, self._label, 11.5, anchor="middle", bold=True)
        svg.text(x + self.width / 2, y + 29, self._line, 9.5, QUIET, anchor="middle")
        top = y + 35
        if not self._across:
            at = x + (self.width - BAR_WIDTH) / 2
            for state, count in self._counts.most_common():
                width = BAR_WIDTH * count / len(self._members)
                svg.rect(at, top, width, BAR_HEIGHT, colours_of(state)[1], title=f"{count:,} {state}")
                at += width
            return
        left = x + (self.width - self._across * CELL) / 2
        for number, step in enumerate(self._members):
            row, column = divmod(number, self._across)
            _, border = colours_of(step.state)
            svg.rect(
                left + column * CELL, top + row * CELL, CELL - 1.5, CELL - 1.5, border, round=1.5, title=told(step)
            )


def _line(step: StepView) -> str:
    """What a box says under the step's name."""
    if step.took_s is not None and not step.merges:
        return f"{seconds(step.took_s)} · {step.state}"
    if step.state == "planned" and step.expected_s is not None:
        return f"about {seconds(step.expected_s)}"
    return step.state


def told(step: StepView) -> str:
    """All that is known of a step, for whoever points at it."""
    parts = [step.id, step.state]
    if step.took_s is not None:
        parts.append(f"took {seconds(step.took_s)}")
    if step.expected_s is not None:
        parts.append(f"expected {seconds(step.expected_s)}")
    if step.host:
        gpus = f" gpu {','.join(map(str, step.gpu_indexes))}" if step.gpu_indexes else ""
        parts.append(f"on {step.host}{gpus}")
    if step.size:
        parts.append(f"gave {step.size:,} bytes")
    return " · ".join([*parts, *([step.note] if step.note else [])])


def seconds(time_s: float) -> str:
    """A time as people say it."""
    if time_s < 0.9995:
        return f"{time_s * 1000:.0f} ms"
    if time_s < 99.95:
        return f"{time_s:.3g} s"
    minutes, rest = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def _legend(svg: SvgWriter, view: GraphView, y: float, *, with_path: bool) -> float:
    x = MARGIN
    for state, count in view.states.items():
        fill, border = COLOURS.get(state, COLOURS["skipped"])
        svg.rect(x, y - 10, 12, 12, fill, border, line=1.2, round=3)
        label = f"{count:,} {state}"
        svg.text(x + 18, y, label, 11, INK)
        x += 34 + text_width(label, 11)
    if with_path:
        svg.line(x, y - 4, x + 22, y - 4, CRITICAL, 2.4)
        svg.text(x + 28, y, "critical path", 11, INK)
        x += 44 + text_width("critical path", 11)
    return x
