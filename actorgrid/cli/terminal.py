"""What a host answers, made safe to print for people where the command line takes it in, also in parts of a line.

Not what is printed as JSON, which writes such characters as escapes and so stays faithful. ``printing`` looks at each
line again as it is written: that knows no longer which colours in it are ours, and which came in a name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from actorgrid.client.http import AdminHttp, ServerEvent
from actorgrid.errors import ActorGridError, error_from_dict

from .printing import visible


def visible_in(value: Any) -> Any:
    """Plain values with every text in them, names of fields included, made so."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible_in(name): visible_in(part) for name, part in value.items()}
    if isinstance(value, list):
        return [visible_in(part) for part in value]
    return value


class TerminalHttp(AdminHttp):
    """A door whose answers, events and errors are printed for people."""

    def request(self, *asked: Any, **more: Any) -> Any:
        """As ``AdminHttp.request``."""
        try:
            return visible_in(super().request(*asked, **more))
        except ActorGridError as error:
            raise visible_error(error) from error

    @contextmanager
    def event_stream(self, path: str, last_event_id: str = "", /, **query: Any) -> Iterator[Iterator[ServerEvent]]:
        """As ``AdminHttp.event_stream``."""
        with super().event_stream(path, last_event_id, **query) as events:
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
