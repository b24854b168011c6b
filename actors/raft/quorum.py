"""What a majority of voters agrees on: the highest number that it reached, and whether it voted yes.

Raft dissertation (Ongaro 2014), sections 3.6.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

EVERYTHING = 2**64
"""More than any index or number: what an empty set of voters agrees on, for joint quorums to take the minimum."""


def reached(voters: Collection[int], numbers: Mapping[int, int]) -> int:
    """The highest number that a majority of *voters* has reached; who is not in *numbers* has reached 0."""
    if not voters:
        return EVERYTHING
    ordered = sorted([numbers.get(voter, 0) for voter in voters])
    # Of four voters the second lowest: three have reached it, and three of four are a majority, two are not.
    return ordered[(len(ordered) - 1) // 2]


def decided(voters: Collection[int], votes: Mapping[int, bool]) -> bool | None:
    """True when a majority of *voters* said yes, False when it no longer can, None while it is open."""
    needed = len(voters) // 2 + 1
    if not voters:
        return True
    yes = sum(votes.get(voter, False) for voter in voters)
    if yes >= needed:
        return True
    open_votes = sum(voter not in votes for voter in voters)
    return None if yes + open_votes >= needed else False
