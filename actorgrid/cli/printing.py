"""Where the command line writes text for people: nothing in it may command their terminal, wherever it comes from.

Names and texts come from hosts, from files on this machine, from what was typed; any of them may hold escape
sequences. So all that is printed for people goes through :func:`say`, which leaves our own colours and nothing else.
JSON (:func:`say_json`) has escapes for such characters. What work wrote (``logs``, ``run``) is passed on as it is.
"""

from __future__ import annotations

import re
from typing import Any

import click

# C0 with DEL, C1, line and paragraph separators, what turns the direction of writing, and halves of pairs.
_COMMANDS = r"\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_A_CELL = re.compile(f"[{_COMMANDS}]")
_IN_A_TEXT = re.compile(rf"(?![\n\t])[{_COMMANDS}]")
# A colour is all that a text can give itself by these: no other code of click.style is used here.
_BESIDE_OUR_STYLES = re.compile(rf"(\x1b\[(?:[01]|3[1-7])m)|(?![\n\t])[{_COMMANDS}]")

HOME, CLEAR = "\x1b[H", "\x1b[J"
"""To the upper left corner; away with what is behind it."""


def visible(text: str, cell: bool = False) -> str:
    """*text* with what could command a terminal written as in Python: ``\\x1b``. A *cell* has no new lines either."""
    if text.isascii() and text.isprintable():
        return text
    return (_IN_A_CELL if cell else _IN_A_TEXT).sub(_written_out, text)


def say(text: str = "", *, err: bool = False, color: bool | None = None) -> None:
    """Print *text* and a new line, for people: with our styles, and everything else in it made :func:`visible`."""
    if not (text.isascii() and text.isprintable()):
        text = _BESIDE_OUR_STYLES.sub(_written_out_but_styles, text)
    click.echo(text, err=err, color=color)


def draw(command: str) -> None:
    """Send the terminal a command of our own: HOME, CLEAR."""
    click.echo(command, nl=False, color=True)


def say_json(value: Any, *, err: bool = False) -> None:
    """Print *value* as one line of JSON, faithful: in ASCII, where DEL is an escape as the other characters are."""
    import json

    click.echo(json.dumps(value, default=str).replace("\x7f", "\\u007f"), err=err)


def _written_out(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def _written_out_but_styles(found: re.Match[str]) -> str:
    return found[1] or _written_out(found)
