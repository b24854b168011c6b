"""Fencing tokens: which of two holders came later, so that what they write to can refuse the earlier one.

A token is the place in the ledger at which something was granted: a lock, an attempt of a job, a worker of a session.
A restore from a backup begins a new recovery epoch, so that tokens grow through it. docs/fencing.md shows their use.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from actorgrid.errors import BadRequest

_EPOCH_BITS = 48
_TEXT = re.compile(r"(\d{10})-(\d{15})", re.ASCII)


class FencingToken(NamedTuple):
    """Of two for the same thing, the one granted later is greater: as a pair, as ``int()`` and as ``str()``.

    ``str()`` gives 26 characters, ``0000000000-000000000001234``, that sort as the pairs do wherever text is compared
    by bytes. ``int()`` gives epoch times 2^48 plus index. It outgrows a 64-bit column with the first restore from a
    backup, whose epoch is a time in seconds: store the text.
    """

    epoch: int
    log_index: int

    def __int__(self) -> int:
        return (self.epoch << _EPOCH_BITS) + self.log_index

    def __str__(self) -> str:
        return f"{self.epoch:010d}-{self.log_index:015d}"

    @classmethod
    def of(cls, number: int) -> FencingToken:
        """The token whose ``int()`` is *number*."""
        return cls(number >> _EPOCH_BITS, number & ((1 << _EPOCH_BITS) - 1))

    @classmethod
    def parse(cls, text: str) -> FencingToken:
        """The token whose ``str()`` is *text*. Raises BadRequest for anything else."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise BadRequest(
                "not the text of a fencing token",
                found=ascii(text[:80]),
                hint="it is 10 digits, a hyphen and 15 digits, as ACTORGRID_TOKEN is inside of work",
            )
        return cls(int(match[1]), int(match[2]))


def is_fencing_token(text: str) -> bool:
    """Whether *text* has the form of a fencing token, which no bearer token of an agent and no API key has.

    ``ACTORGRID_TOKEN`` means two things: what a client shows an agent, and, in the environment of work, the
    token under which that work was granted. Whoever reads the variable asks here which of the two it is.
    """
    return _TEXT.fullmatch(text) is not None
