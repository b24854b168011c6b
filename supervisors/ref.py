"""A reference to one process: never given to another, not even to the same actor after a restart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ref:
    """One actor process of this boot: OTP's pid.

    ``address`` is its socket's name and says everything: two refs are equal when their addresses are. ``name`` is what
    it is called by people and logs, and takes no part in comparison. Refs may be sent in messages and kept; those
    of the dead stay valid as names of the dead.
    """

    address: str
    name: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other.address == self.address

    def __hash__(self) -> int:
        return hash(self.address)

    def __str__(self) -> str:
        return f"{self.name or 'actor'}@{self.address}"
