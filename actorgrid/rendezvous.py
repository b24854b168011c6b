"""Rendezvous hashing: who of some names serves a purpose, the same for all who know the same names.

Each name's rank for a purpose is a hash of both (Thaler, Ravishankar: "A Name-Based Mapping Scheme for Rendezvous",
1996). So whoever knows the names knows the order, without a word; one who goes moves nobody else; and different
purposes fall to different names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b


def ranked(purpose: str, names: Iterable[str]) -> list[str]:
    """*names* in the order in which they are to serve *purpose*."""
    return sorted(names, key=lambda name: (rank_of(purpose, name), name))


def relays_between(purpose: str, site: str, other: str, names: Iterable[str]) -> list[str]:
    """*names*, all of *site*, in the order in which they are to speak to the hosts of site *other*."""
    return ranked(f"{purpose}\0{site}\0{other}", names)


def opposite(ours: Sequence[str], me: str, theirs: Sequence[str]) -> str | None:
    """To whom of *theirs* relay *me* turns: the first of *ours* to the first, and so on round; ``None``: to nobody."""
    if me not in ours or not theirs:
        return None
    return theirs[ours.index(me) % len(theirs)]


def rank_of(purpose: str, name: str) -> bytes:
    """A name's rank for a purpose: 8 bytes, as good as chance."""
    return blake2b(f"{purpose}\0{name}".encode(), digest_size=8).digest()
