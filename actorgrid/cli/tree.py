"""How ``inspect`` draws: the supervision tree with its columns, and one server in full."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from .printing import visible
from .show import ago, aligned, cut, size, span, terminal_width

COLUMNS = ("NAME", "STATE", "PID>", "UP>", "RESTARTS>", "HANDLED>", "NOTE")
GIVEN_UP_FIRST = ("UP>", "HANDLED>", "PID>", "RESTARTS>")
"""Columns that leave, in this order, when a terminal is too narrow for them and a readable note."""
NOTE_LEAST = 20
NAME_LEAST = 14
FOLDED_LEAST = 4
"""So many equal dynamic children, and no fewer, become one line."""
COLOURS = {
    "up": "green",
    "running": "green",
    "suspended": "magenta",
    "silent": "red",
    "down": "red",
    "restarting": "yellow",
    "starting": "yellow",
    "stopping": "yellow",
    "waiting": "yellow",
}
_DYNAMIC = re.compile(r"(.+):\d+")
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the tree. ``names``: how many servers it stands for."""

    branch: str
    name: str
    state: str
    pid: str
    up: str
    restarts: str
    handled: str
    note: str
    names: int = 1

    def cells(self) -> list[str]:
        """The cells of the row in the order of COLUMNS."""
        return [self.branch + self.name, self.state, self.pid, self.up, self.restarts, self.handled, self.note]


def state_of(node: dict[str, Any]) -> str:
    """A server's state in one word: its supervisor's, unless it is up and does not handle messages."""
    if node["state"] == "up":
        if (node.get("error") or {}).get("code") == "CallTimeout":
            return "silent"
        if (node.get("inspect") or {}).get("state") == "suspended":
            return "suspended"
    return str(node["state"])


def note_of(node: dict[str, Any], aged: bool = True) -> str:
    """The note on a server beside its state; without ages it can be compared."""
    inspect, last, parts = node.get("inspect") or {}, node.get("last_exit"), []
    if node.get("error"):
        parts.append(str(node["error"]["message"]))
    if inspect.get("state") == "suspended":
        parts.append(f"{inspect['held']} held")
    if inspect.get("dropped"):
        parts.append(f"{inspect['dropped']} dropped")
    if inspect.get("traced"):
        parts.append("traced")
    if last:
        parts.append(end_in_words(last) + (f", {ago(last['at'])} ago" if aged else ""))
    if node.get("left_out"):
        parts.append(f"{node['left_out']} children not listed")
    return "; ".join(parts)


def end_in_words(end: dict[str, Any]) -> str:
    """Why a process ended, in one line; that it hung stands before how that was noticed."""
    reason = next(iter(str(end["reason"]).splitlines()), "")
    return f"hung: {reason}" if end.get("kind") == "hung" else reason


def rows_of(tree: dict[str, Any], every: bool, plain: bool) -> list[Row]:
    """The lines of a tree, parents first. Equal dynamic children share one, unless *every*. *plain*: ASCII alone."""
    tee, corner, bar = ("|-- ", "`-- ", "|   ") if plain else ("├─ ", "└─ ", "│  ")
    rows: list[Row] = []
    waiting = [(tree, "", "")]
    while waiting:
        node, branch, below = waiting.pop()
        rows.append(_row(node, branch))
        children = node.get("children", [])
        lines = [[child] for child in children] if every else _folded(children)
        nexts = []
        for place, group in enumerate(lines):
            last = place == len(lines) - 1
            shown = _together(group) if len(group) > 1 else group[0]
            nexts.append((shown, below + (corner if last else tee), below + (" " * len(bar) if last else bar)))
        waiting += reversed(nexts)
    return rows


def _row(node: dict[str, Any], branch: str) -> Row:
    inspect, count = node.get("inspect"), node.get("names", 1)
    handled = node["handled"] if count > 1 else str(inspect["handled"]) if inspect else "-"
    return Row(
        branch,
        f"{node['name']} x {count}" if count > 1 else str(node["name"]),
        state_of(node),
        "" if count > 1 else str(node["pid"] or "-"),
        "" if count > 1 else ago(node.get("started_at")),
        str(node["restarts"]),
        handled,
        note_of(node),
        count,
    )


def _folded(children: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The children in order, those dynamic ones as one that differ in nothing one would look for."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for child in children:
        dynamic = _DYNAMIC.fullmatch(child["name"])
        if dynamic and not child.get("children") and not child.get("left_out"):
            key: Any = (dynamic[1], child["kind"], state_of(child), note_of(child, aged=False))
        else:
            key = id(child)
        groups.setdefault(key, []).append(child)
    lines = []
    for group in groups.values():
        lines += [group] if len(group) >= FOLDED_LEAST else [[child] for child in group]
    return lines


def _together(group: list[dict[str, Any]]) -> dict[str, Any]:
    """One node that stands for equal ones: with their sums, and the latest end."""
    told = [child["inspect"]["handled"] for child in group if child.get("inspect")]
    ends = [child["last_exit"] for child in group if child.get("last_exit")]
    handled = f"{sum(told)}{'+' if len(told) < len(group) else ''}" if told else "-"
    return {
        **group[0],
        "name": group[0]["name"].rpartition(":")[0],
        "names": len(group),
        "restarts": sum(child["restarts"] for child in group),
        "handled": handled,
        "last_exit": max(ends, key=lambda end: end.get("at") or 0.0) if ends else None,
    }


def fitting(rows: Sequence[Row], width: int | None) -> list[str]:
    """The table, coloured, no line wider than *width*: columns leave first, then the note is cut, then the name."""
    cells = [[name.rstrip(">") for name in COLUMNS], *(row.cells() for row in rows)]
    kept = list(range(len(COLUMNS)))
    if width is not None:
        room = width
        longest = max(len(row.note) for row in rows)
        for column in (None, *GIVEN_UP_FIRST):
            if column is not None:
                kept.remove(COLUMNS.index(column))
            room = width - sum(max(len(line[place]) for line in cells) + len(_GAP) for place in kept[:-1])
            if room >= min(NOTE_LEAST, max(longest, len("NOTE"))):
                break
        if room < len("NOTE"):
            name_room = width - max(len(line[1]) for line in cells) - len(_GAP)
            kept, room = [0, 1], 0
            cells = [[cut(line[0], max(NAME_LEAST, name_room)), *line[1:]] for line in cells]
        cells = [[*line[:-1], cut(line[-1], room)] for line in cells]
    columns = [COLUMNS[place] for place in kept]
    lines = aligned([[line[place] for place in kept] for line in cells], columns)
    return [
        click.style(lines[0], bold=True),
        *(_coloured(line, row) for line, row in zip(lines[1:], rows, strict=True)),
    ]


def _coloured(line: str, row: Row) -> str:
    """The line with its state, which stands behind the name, in its colour."""
    colour = COLOURS.get(row.state)
    place = line.find(f"{_GAP}{row.state}", min(len(row.branch) + 1, len(line)))
    if colour is None or place < 0:
        return line
    start, end = place + len(_GAP), place + len(_GAP) + len(row.state)
    return line[:start] + click.style(line[start:end], fg=colour) + line[end:]


def speaks_unicode() -> bool:
    """Whether stdout can show the lines of a tree."""
    try:
        "├└│─…".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def tree_lines(document: dict[str, Any], every: bool) -> list[str]:
    """The whole tree for people, with what was left out."""
    plain = not speaks_unicode()
    rows = rows_of(document["tree"], every, plain)
    lines = fitting([_in_ascii(row) for row in rows] if plain else rows, terminal_width())
    folded = sum(row.names for row in rows if row.names > 1)
    if folded:
        lines.append(f"({folded} equal children in one line each kind; --all lists them)")
    if document.get("truncated"):
        lines.append("(not all children are listed: the tree is larger than one answer; inspect one by its name)")
    return lines


def _in_ascii(row: Row) -> Row:
    return replace(row, note=row.note.encode("ascii", "replace").decode())


def server_lines(answer: dict[str, Any], state: bool) -> list[str]:
    """One server for people, with its attributes if *state*."""
    word = state_of(answer)
    inspect, last = answer.get("inspect") or {}, answer.get("last_exit")
    pairs: list[tuple[str, str]] = [
        ("kind", str(inspect.get("kind") or answer["kind"])),
        ("process", f"pid {answer['pid']}, address {answer['address']}" if answer["pid"] else "none now"),
    ]
    if answer.get("started_at"):
        pairs.append(("up for", span(time.time() - answer["started_at"])))
    if answer.get("restart"):
        pairs.append(("restart", f"{answer['restart']}, {answer['restarts']} so far"))
    if last:
        pairs.append(("last end", f"{end_in_words(last)}, {ago(last['at'])} ago"))
    if answer.get("error"):
        pairs.append(("silent", str(answer["error"]["message"])))
    if inspect:
        held = f", {inspect['held']} held" if inspect["held"] or inspect["state"] == "suspended" else ""
        lost = f", {inspect['dropped']} dropped" if inspect["dropped"] else ""
        pairs.append(("messages", f"{inspect['handled']} handled{held}{lost}, {inspect['open_calls']} open calls"))
        watching = f"{inspect['monitors']} monitors, {inspect['links']} links, monitored by {inspect['monitored_by']}"
        pairs.append(("watching", watching))
        pairs.append(("trace", "on" if inspect["traced"] else "off"))
    width = terminal_width()
    lines = [f"{click.style(str(answer['name']), bold=True)} {click.style(word, fg=COLOURS.get(word))}"]
    lines += _pairs(pairs, width)
    for title, values in (
        ("status", inspect.get("status") or {}),
        ("state", (answer.get("attributes") if state else None) or {}),
    ):
        tables = {key: one for key, one in values.items() if _is_table(one)}
        plain = [(key, _text(one)) for key, one in values.items() if key not in tables]
        if plain:
            lines += [click.style(title, bold=True), *_pairs(plain, width)]
        for key, rows in tables.items():
            lines += [click.style(key.replace("_", " "), bold=True), *_table(rows)]
    return lines


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows of one kind as lines, with a column for each name that any of them has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    heads = [name.replace("_", " ").upper() for name in names]
    cells = [[_cell(name, row.get(name)) for name in names] for row in rows]
    return [f"  {line}" for line in aligned([heads, *cells], heads)]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return size(value) if name.endswith("_bytes") else visible(_text(value), cell=True)


def _text(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, default=str)


def _pairs(pairs: list[tuple[str, str]], width: int | None) -> list[str]:
    """Keys and values below each other; a value of several lines goes on under its beginning."""
    longest = max(len(key) for key, _ in pairs)
    found = []
    for key, value in pairs:
        head = f"  {key.ljust(longest)}  "
        for line in value.splitlines() or [""]:
            found.append((cut(head + line, width) if width is not None else head + line).rstrip())
            head = " " * len(head)
    return found


def event_line(event: dict[str, Any]) -> str:
    """One traced message."""
    at = time.strftime("%H:%M:%S", time.localtime(event["at"])) + f"{event['at'] % 1:.3f}"[1:]
    way = "<-" if event["way"] == "in" else "->"
    line = f"{at} {way} {event['kind']:6} {event['peer']}: {event['message']}"
    width = terminal_width()
    return line if width is None else cut(line, width)
