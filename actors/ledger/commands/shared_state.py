"""Commands of the ledger about the shared state, which does not lie in it (``replication``)."""

from itertools import pairwise
from typing import Annotated, Any

from ..command import Command, Proposer, verb
from ..field_checks import Id, Plain, Whole, is_whole, refused
from ..retirement_records import INCARNATION_GONE

RETIREMENT_SINCE = 5
"""The version of the ledger that all members have to know before origins of the shared state are retired."""
FINALS_MAX = 256
"""Openings of one retirement; a host with more takes some, and then the others."""
CHANCE_MAX = 2**31
SEQUENCE_MAX = 2**48


def _is_final(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 3 or not all(is_whole(part) for part in value):
        return False
    incarnation, chance, last = value
    return bool(1 <= incarnation < INCARNATION_GONE and 0 < chance < CHANCE_MAX and 0 < last < SEQUENCE_MAX)


def is_finals(value: Any) -> bool:
    """Openings with their last sequences: (incarnation, chance, sequence), in order, none twice."""
    if not isinstance(value, list) or not len(value) <= FINALS_MAX or not all(map(_is_final, value)):
        return False
    openings = [part[:2] for part in value]
    return all(one < other for one, other in pairwise(openings))


@verb("retire_origins", Proposer.ITSELF, since=RETIREMENT_SINCE)
class RetireOrigins(Command):
    """Retire the openings of a host's shared state below a *floor*: every member has told that it holds all of them up
    to their last sequences, the *finals*, and nothing of the host's openings below the floor beside them. They told so
    at the level *base*: what was retired up to there is not among the finals.

    *by*: who found that, the host itself, or any member about a host that is none any more.
    """

    host: Id
    floor: Annotated[int, lambda value: is_whole(value) and 1 < value <= INCARNATION_GONE]
    finals: Annotated[list[list[int]], is_finals]
    level: Whole
    base: Whole
    by: Id

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check that all of the finals are below the floor, and the base below the level."""
        highest = plain["finals"][-1][0] if plain["finals"] else 0
        if highest >= plain["floor"]:
            raise refused(
                "retire_origins: field 'finals' is wrong",
                found=f"incarnation {highest}, not below the floor {plain['floor']}",
            )
        if plain["base"] >= plain["level"]:
            raise refused("retire_origins: field 'base' is wrong", found=f"{plain['base']}, not below {plain['level']}")

    def about_host(self) -> object:
        """The id of the host that found it: only that may say so."""
        return self.by
