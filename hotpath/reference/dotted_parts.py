"""What dotted CRDTs are made of: a context of all events seen, and the live events by their dots and by their places.

These classes only hold the parts; ``actors.replication`` says what they mean. The compiled twin exists for
``DeltaMerge``: it gets at the parts without asking for attributes by name, and a small delta that it has read is a row
of dots and events, which it joins as they are. The parts of such a delta are made when somebody asks for one of them,
which nearly never happens.
"""

from __future__ import annotations

from typing import Any


class ContextParts:
    """``_vector``: by replica, up to where all its dots are in; ``_cloud``: by replica, the counters beyond a gap."""

    __slots__ = ("_cloud", "_vector")

    _vector: dict[Any, int]
    _cloud: dict[Any, set[int]]


class DottedParts:
    """``_entries``: live events by dot, each (head, rest, content); ``_index``: their dots, by head and rest;
    ``_context``: the context of all events seen, the removed ones included.
    """

    __slots__ = ("_context", "_entries", "_index")

    _entries: dict[Any, Any]
    _index: dict[Any, dict[Any, tuple[Any, ...]]]
    _context: Any
