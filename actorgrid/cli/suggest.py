"""Suggestions for misspelt names: "Did you mean …?"."""

from __future__ import annotations

from collections.abc import Iterable


def suggestion(word: str, known: Iterable[str]) -> str:
    """A sentence with the nearest of *known*, with a space before it; empty when nothing is near."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
