"""Writes SVG: the few shapes that pictures of graphs are made of, with every text escaped."""

from __future__ import annotations

from itertools import pairwise
from xml.sax.saxutils import escape, quoteattr

INK, QUIET, PAPER, GRID = "#1d2433", "#5d6880", "#ffffff", "#e3e7ee"
CRITICAL = "#d9480f"
TIMES = "\N{MULTIPLICATION SIGN}"
COLOURS = {
    "planned": ("#eef1f6", "#8a96ab"),
    "waiting": ("#eef1f6", "#8a96ab"),
    "released": ("#fdf0c8", "#b98a06"),
    "queued": ("#fdf0c8", "#b98a06"),
    "placed": ("#fdf0c8", "#b98a06"),
    "running": ("#cfe2ff", "#1f6feb"),
    "succeeded": ("#d3f2dc", "#2b8a4b"),
    "cached": ("#c9f2ef", "#0c8599"),
    "stopped": ("#e5dbff", "#6741d9"),
    "failed": ("#ffd6d6", "#c92a2a"),
    "skipped": ("#e6e6e6", "#8d8d8d"),
}
"""Of each state what fills a box, and its border."""
FONT = "system-ui, 'DejaVu Sans', 'Liberation Sans', Arial, sans-serif"
CHAR_EM, BOLD_EM = 0.62, 0.71
"""How wide a character is in such a font, for wide ones too, as a part of its size."""


def colours_of(state: str) -> tuple[str, str]:
    """What fills a box of that state, and its border."""
    return COLOURS.get(state, COLOURS["skipped"])


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """About how wide a line is."""
    return (BOLD_EM if bold else CHAR_EM) * size * len(text)


class SvgWriter:
    """A picture that grows by shapes; lengths are in pixels."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        stroke: str = "",
        *,
        line: float = 1.0,
        round: float = 0.0,
        title: str = "",
        dashed: bool = False,
    ) -> None:
        """A rectangle; *title* is shown while the pointer is over it."""
        border = f' stroke="{stroke}" stroke-width="{_n(line)}"' if stroke else ""
        dashes = ' stroke-dasharray="4 3"' if dashed else ""
        corner = f' rx="{_n(round)}"' if round else ""
        shape = f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        shape += f' fill="{fill}"{border}{corner}{dashes}'
        self._parts.append(f"{shape}><title>{escape(title)}</title></rect>" if title else f"{shape}/>")

    def text(
        self, x: float, y: float, text: str, size: float = 12, fill: str = INK, *, anchor: str = "", bold: bool = False
    ) -> None:
        """A line of text, its baseline at *y*; *anchor*: middle or end."""
        more = f' text-anchor="{anchor}"' if anchor else ""
        more += ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" fill="{fill}"{more}>{escape(text)}</text>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 1.0, dashes: str = ""
    ) -> None:
        """A straight line."""
        more = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._parts.append(
            f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" stroke="{stroke}"'
            f' stroke-width="{_n(width)}"{more}/>'
        )

    def way(self, points: list[tuple[float, float]], stroke: str, width: float = 1.0, *, arrow: bool = True) -> None:
        """A smooth line through points, level in each of them, with an arrow head at its end."""
        if arrow:
            points = [*points[:-1], (points[-1][0] - 4 - width, points[-1][1])]
        path = [f"M{_n(points[0][0])} {_n(points[0][1])}"]
        for (x1, y1), (x2, y2) in pairwise(points):
            if abs(y1 - y2) < 0.5:
                path.append(f"L{_n(x2)} {_n(y2)}")
            else:
                bend = (x2 - x1) / 2
                path.append(f"C{_n(x1 + bend)} {_n(y1)} {_n(x2 - bend)} {_n(y2)} {_n(x2)} {_n(y2)}")
        self._parts.append(f'<path d="{"".join(path)}" fill="none" stroke="{stroke}" stroke-width="{_n(width)}"/>')
        if arrow:
            x, y = points[-1]
            size = 2.5 + width
            self._parts.append(
                f'<path d="M{_n(x + size + 1.5)} {_n(y)}L{_n(x - 1)} {_n(y - size)}L{_n(x - 1)} {_n(y + size)}Z"'
                f' fill="{stroke}"/>'
            )

    def document(self, width: float, height: float, title: str) -> str:
        """The whole picture."""
        size = f'width="{_n(width)}" height="{_n(height)}" viewBox="0 0 {_n(width)} {_n(height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family={quoteattr(FONT)} role="img">'
        paper = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
        return "\n".join([head, f"<title>{escape(title)}</title>", paper, *self._parts, "</svg>", ""])


def _n(value: float) -> str:
    """A number as short as it may be."""
    return f"{value:.1f}".removesuffix(".0")
