"""The errors for a call to a server that is not there: it never was, or it is being restarted."""

from __future__ import annotations

from collections.abc import Iterable

from actorgrid.errors import NoSuchActor

from .ref import Ref

NAMES_SHOWN = 10
NAMES_COMPARED_MAX = 1_000
"""Looking for a name like it costs about 10 us for each that is there."""


def no_such_server(to: str | Ref, names: Iterable[str]) -> NoSuchActor:
    """The error for a call to an unknown server; it lists *names*, those of the living servers."""
    import difflib

    known = sorted(names)
    found = ", ".join(known[:NAMES_SHOWN]) + (f" and {len(known) - NAMES_SHOWN} more" if known[NAMES_SHOWN:] else "")
    near = difflib.get_close_matches(str(to), known[:NAMES_COMPARED_MAX], n=1, cutoff=0.5)
    return NoSuchActor(
        f"no server is called {to!s} now",
        found=f"servers now: {found or 'none'}",
        hint=f"Did you mean {near[0]!r}?" if near else "it is being restarted, or has not started yet",
    )
