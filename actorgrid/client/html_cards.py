"""What notebooks show of clients, futures and clusters: a small card of HTML, readable on light and dark pages.

A card is asked for whenever a cell ends with such an object, so it never waits long and never fails; and everything on
it is escaped, since names come of users.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

MAX_CHARS = 200
"""Of one value; more is cut off."""
_COLOURS = {"good": "#2e7d32", "busy": "#1565c0", "bad": "#c62828", "over": "#757575"}
_CARD = (
    '<div style="display:inline-block;border:1px solid #8886;border-radius:6px;padding:8px 12px;margin:2px 0;'
    'font-family:sans-serif;font-size:13px;line-height:1.5">'
)
_STATE = '<span style="background:{colour};color:#fff;border-radius:8px;padding:1px 8px;margin-left:8px">{text}</span>'
_ROW = (
    '<tr style="background:none"><td style="text-align:left;opacity:.7;padding:0 12px 0 0">{name}</td>'
    '<td style="text-align:left;padding:0">{value}</td></tr>'
)


def card(title: str, rows: Iterable[tuple[str, object]], state: str = "", mood: str = "good") -> str:
    """A card headed *title*, with *state* beside it; rows whose value is empty are left out.

    *mood* gives the state's colour: ``good``, ``busy``, ``bad`` or ``over``.
    """
    shown = _STATE.format(colour=_COLOURS[mood], text=_text(state)) if state else ""
    table = "".join(
        _ROW.format(name=_text(name), value=_text(value)) for name, value in rows if value is not None and value != ""
    )
    body = (
        f'<table style="margin-top:4px;border-collapse:collapse;border:none;color:inherit;font:inherit">{table}</table>'
        if table
        else ""
    )
    return f"{_CARD}<b>{_text(title)}</b>{shown}{body}</div>"


def _text(value: object) -> str:
    text = str(value)
    return escape(text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…")
