"""What comes from outside, made safe to print for people: names and texts may hold bytes that command a terminal.

Everything that a host answers passes here once, where the command line takes it in, unless it is printed as JSON, which
writes such characters as escapes and so stays faithful. What work wrote (``logs``, ``run``) is passed on as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from actorgrid.client.http import AdminHttp, ServerEvent
from actorgrid.errors import ActorGridError, error_from_dict

# C0 with DEL, C1, line and paragraph separators, what turns the direction of writing, and halves of pairs.
_COMMANDS = (range(0x20), range(0x7F, 0xA0), range(0x200E, 0x2010), range(0x2028, 0x202F), range(0x2066, 0x206A))
_SURROGATES = range(0xD800, 0xE000)
_IN_A_CELL = {code: ascii(chr(code))[1:-1] for codes in (*_COMMANDS, _SURROGATES) for code in codes}
_IN_A_TEXT = {code: shown for code, shown in _IN_A_CELL.items() if chr(code) not in "\n\t"}


def visible(text: str, cell: bool = False) -> str:
    """*text* with what could command a terminal written as in Python: ``\\x1b``. A *cell* has no new lines either."""
    return text if text.isascii() and text.isprintable() else text.translate(_IN_A_CELL if cell else _IN_A_TEXT)


def visible_in(value: Any) -> Any:
    """Plain values with every text in them, names of fields included, made so."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible_in(name): visible_in(part) for name, part in value.items()}
    if isinstance(value, list):
        return [visible_in(part) for part in value]
    return value


class PeoplesHttp(AdminHttp):
    """A door whose answers, events and errors are printed for people."""

    def request(self, *asked: Any, **more: Any) -> Any:
        """As ``AdminHttp.request``."""
        try:
            return visible_in(super().request(*asked, **more))
        except ActorGridError as error:
            raise visible_error(error) from error

    @contextmanager
    def event_stream(self, path: str, **query: Any) -> Iterator[Iterator[ServerEvent]]:
        """As ``AdminHttp.event_stream``."""
        with super().event_stream(path, **query) as events:
            yield (event._replace(data=_visible_data(event.data)) for event in events)


def visible_error(error: ActorGridError) -> ActorGridError:
    """The same error, of which each text can be printed."""
    if type(error) is not type(error_from_dict(error.to_dict())):
        return error  # one that only this side has
    return error_from_dict(visible_in(error.to_dict()))


def _visible_data(data: str) -> str:
    try:
        return json.dumps(visible_in(json.loads(data)))
    except ValueError:
        return visible(data)
