"""What the membership core tells its owner to do, or to know."""

from __future__ import annotations

from typing import NamedTuple

from .packets import FullState, Packet
from .records import MemberStatus


class SendPacket(NamedTuple):
    """Send a datagram. It may be lost."""

    to: str
    packet: Packet


class SendState(NamedTuple):
    """Bring a full state over a link. It may fail; nothing waits for it."""

    to: str
    state: FullState


class AskByLink(NamedTuple):
    """Ask over a link whether ``member`` is there, and tell ``answered_by_link`` the ``sequence`` if it is."""

    to: str
    member: str
    sequence: int


class MemberChanged(NamedTuple):
    """A member is in another state than before; ``before`` is None for one that was not known."""

    record: MemberStatus
    before: MemberStatus | None


class MemberUnreachable(NamedTuple):
    """A member is declared dead, in SWIM's word: nobody has reached it, nor heard it refute that.

    ``witnesses`` are those who accused it, as far as this host heard; the declaring host, where another one declared
    it, is the last. It is no proof of death, and nothing may be started in its place because of it: that is for the
    ledger, which counts witnesses and waits for leases.
    """

    record: MemberStatus
    witnesses: tuple[str, ...]


class SiteReached(NamedTuple):
    """Another site is reached, or is not any more, by this host, which relays to it. Of its hosts that says nothing."""

    site: str
    reached: bool


class FarewellSaid(NamedTuple):
    """This host's leaving was passed on as often as news are; it may close its socket."""


Instruction = SendPacket | SendState | AskByLink | MemberChanged | MemberUnreachable | SiteReached | FarewellSaid
