"""What is said of a member: its state in its incarnation, and who says so; of two such words, which one counts.

The words are SWIM's (Das, Gupta, Motivala: "SWIM: Scalable Weakly-consistent Infection-style Process Group Membership
Protocol", 2002). ``DEAD`` is what nobody reaches: it ends probing and nothing else. Whether work starts elsewhere is
for the ledger to say.
"""

from __future__ import annotations

from typing import NamedTuple

ALIVE, SUSPECT, DEAD, LEFT = range(4)
STATES = ("alive", "suspect", "dead", "left")
"""By their numbers on the wire: append, never reorder."""

LIFE_BITS = 24
LIFE_MAX = 2**32 - 1
INCARNATION_MAX = ((LIFE_MAX + 1) << LIFE_BITS) - 1
LEAP_MAX = 2**20 << LIFE_BITS
"""How far an incarnation may lie above the one that is known: a million starts. Without a bound, one forged word with
the greatest number there is would leave its subject no number above it to refute with."""

NAME_BYTES_MAX = 64
ADDRESS_BYTES_MAX = 72
"""A name of 64 bytes, a colon and a port, with room."""


class MemberStatus(NamedTuple):
    """One word about a member. It is what gossip carries, what is exchanged in full, and what the table keeps.

    ``incarnation`` counts the starts of the host in its upper bits (``first_incarnation``) and its refutations in the
    lower: only its own host raises it. ``by`` is who says it; that of an alive or left member is the member itself.
    """

    name: str
    address: str
    incarnation: int
    state: int
    by: str


def first_incarnation(life: int) -> int:
    """The incarnation that a host begins its start number *life* with: above all of the starts before."""
    return life << LIFE_BITS


def overrides(incarnation: int, state: int, known: MemberStatus) -> bool:
    """Whether that word counts more than *known*: of a later incarnation, or worse in the same one.

    A total order, so that all who heard the same words, in whatever order, come to the same state.
    """
    return incarnation > known.incarnation or (incarnation == known.incarnation and state > known.state)
