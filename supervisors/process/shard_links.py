"""Links between shards of a cluster, as decisions: who is connected, since when, and what goes over.

Each shard of a set has a *slot*, 0 and up, and a fencing token, which is greater for each incarnation. Of two shards
the one with the lower slot opens the connection. Both prove the set's secret before anything is unpickled.

A link is up or down, and both ends agree on what went over it: a break loses what was under way, is told as
``noconnection`` on both sides, and what comes after is of a new link. A side that hears nothing for *patience_s* gives
the link up; it says something itself four times as often. An incarnation that another has followed is refused.

Bounds: 100,000 messages wait for a link, and then further ones are refused; signals are bounded by what they are about.
A frame has at most 5,000 items and 64 MiB.
"""

from __future__ import annotations

import hmac
import pickle  # nosec B403 - of who proved the secret
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from actorgrid.errors import ActorGridError, FrameTooLarge, MalformedBody, PeerRefused, StaleToken, TransportError
from actorgrid.errors import WrongToken as WrongSecret
from actorgrid.fencing import FencingToken
from actorgrid.hotpath.light import Pid, ShardAddress
from actorgrid.transports.frames import FrameDecoder, encode_frame

from ..exits import ExitReason
from .carrier import NOCONNECTION
from .item_pickling import packed

PROTOCOL_VERSION = 2
"""2: a granted name comes with its token."""
WAITING_MAX = 100_000
BATCH_MAX = 5_000
SLOTS_MAX = 256
SLOT_SHIFT = 48
"""A shard's number is its slot, then the place in the ledger where its incarnation was granted."""
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """Which shard of which set one is."""

    group: str
    slot: int
    count: int
    token: FencingToken
    host_id: str

    @property
    def address(self) -> ShardAddress:
        """What its pids begin with: never another incarnation's, nor that of a cluster before a restore."""
        host = self.host_id if self.token.epoch == 0 else f"{self.host_id}~{self.token.epoch}"
        return ShardAddress(host, self.slot << SLOT_SHIFT | self.token.log_index & (1 << SLOT_SHIFT) - 1)


def slot_of(of: Pid | ShardAddress) -> int:
    """The slot of a shard of a set, or of the one that a process is in."""
    return int(of.shard) >> SLOT_SHIFT


class LinkChannel(Protocol):
    """A connection, as bytes; it may break at any moment."""

    @property
    def is_full(self) -> bool:
        """Whether it has so much to send that more should wait."""

    def write(self, data: bytes) -> None:
        """Send, or drop if it has broken."""

    def close(self) -> None:
        """End it; ``ShardLinks.closed`` need not be told."""


class LinkHost(Protocol):
    """What hears of links: the shard."""

    def link_up(self, slot: int, address: ShardAddress) -> None:
        """A shard can be reached from now on."""

    def shard_lost(self, address: ShardAddress, reason: ExitReason) -> None:
        """It cannot any more; of what was under way nothing is known."""

    def take_items(self, slot: int, address: ShardAddress, items: list[tuple[Any, ...]]) -> None:
        """Messages and signals of it, in order."""

    def call_refused(self, number: int, error: BaseException) -> None:
        """A call of ours cannot be sent."""


class _LinkEnd:
    """Our end of one connection."""

    def __init__(self, channel: LinkChannel, dialed: int | None, nonce: bytes, now_s: float) -> None:
        self.channel = channel
        self.dialed = dialed  # the slot that we asked for; None: it came to us
        self.nonce = nonce
        self.decoder = FrameDecoder()
        self.peer: ShardIdentity | None = None
        self.is_up = False
        self.heard_s = self.said_s = now_s
        self.waiting: list[tuple[Any, ...]] = []


class ShardLinks:
    """All links of one shard, and its carrier (``carrier.py``). *random* gives that many bytes nobody can guess."""

    def __init__(
        self, me: ShardIdentity, secret: bytes, host: LinkHost, random: Callable[[int], bytes], patience_s: float
    ) -> None:
        self.me = me
        self.patience_s = patience_s
        self.sent = 0
        self.breaks = 0
        self._secret = secret
        self._host = host
        self._random = random
        self._ends: dict[LinkChannel, _LinkEnd] = {}
        self._up: dict[ShardAddress, _LinkEnd] = {}
        self._slots: dict[int, _LinkEnd] = {}  # those that are up
        self._tokens: dict[int, FencingToken] = {}  # the greatest that was seen of each slot
        self.find_name: Callable[[str], Pid | None] = _nobody

    # -- connections

    def to_dial(self) -> list[int]:
        """The slots that we should connect to."""
        under_way = {end.dialed for end in self._ends.values()}
        return [n for n in range(self.me.slot + 1, self.me.count) if n not in under_way and n not in self._slots]

    def missing(self) -> list[int]:
        """The slots to which no link is up."""
        return [n for n in range(self.me.count) if n != self.me.slot and n not in self._slots]

    def address_of(self, slot: int) -> ShardAddress | None:
        """The shard that is linked in that slot."""
        end = self._slots.get(slot)
        return None if end is None or end.peer is None else end.peer.address

    def dialed(self, channel: LinkChannel, slot: int, now_s: float) -> None:
        """Go on with a connection that we made."""
        end = self._ends[channel] = _LinkEnd(channel, slot, self._random(16), now_s)
        channel.write(encode_frame(["shard", self._hello(end), b""]))

    def accepted(self, channel: LinkChannel, now_s: float) -> None:
        """Go on with a connection that came to us."""
        self._ends[channel] = _LinkEnd(channel, None, self._random(16), now_s)

    def received(self, channel: LinkChannel, data: bytes, now_s: float) -> None:
        """Take bytes."""
        end = self._ends.get(channel)
        if end is None:
            return
        end.heard_s = now_s
        try:
            for frame in end.decoder.feed(data):
                self._take(end, frame)
                if channel not in self._ends:
                    return
        except (ActorGridError, TransportError) as error:
            channel.write(encode_frame(["refused", str(error)[:500]]))
            self._drop(end)

    def closed(self, channel: LinkChannel) -> None:
        """Take the end of a connection."""
        end = self._ends.get(channel)
        if end is not None:
            self._drop(end)

    def tick(self, now_s: float) -> None:
        """Give up what is silent, say something where we were; a few times in each *patience_s*."""
        for end in list(self._ends.values()):
            if now_s - end.heard_s > self.patience_s:
                self._drop(end)
            elif end.is_up and now_s - end.said_s >= self.patience_s / 4:
                end.said_s = now_s
                end.channel.write(encode_frame(["tick"]))

    def close(self) -> None:
        """End all connections."""
        for end in list(self._ends.values()):
            end.channel.close()
        self._ends.clear()

    def _drop(self, end: _LinkEnd) -> None:
        self._ends.pop(end.channel, None)
        end.channel.close()
        if not end.is_up or end.peer is None:
            return
        end.is_up = False
        self.breaks += 1
        address = end.peer.address
        self._up.pop(address, None)
        self._slots.pop(end.peer.slot, None)
        end.waiting.clear()
        self._host.shard_lost(address, NOCONNECTION)

    # -- frames

    def _hello(self, end: _LinkEnd) -> dict[str, Any]:
        me = self.me
        return {
            "version": PROTOCOL_VERSION,
            "python": PYTHON,
            "group": me.group,
            "slot": me.slot,
            "count": me.count,
            "token": list(me.token),
            "host": me.host_id,
            "nonce": end.nonce,
        }

    def _proof(self, role: bytes, nonce: bytes) -> bytes:
        return hmac.digest(self._secret, role + nonce + self.me.group.encode(), "sha256")

    def _take(self, end: _LinkEnd, frame: list[Any]) -> None:
        match frame:
            case ["items", bytes(data)] if end.is_up and end.peer is not None:
                self._host.take_items(end.peer.slot, end.peer.address, pickle.loads(data))  # nosec B301 - see above
            case ["tick"] if end.is_up:
                pass
            case ["shard", dict(hello), bytes(proof)] if end.peer is None:
                self._take_hello(end, hello, proof)
            case ["proof", bytes(proof)] if end.peer is not None and end.dialed is None and not end.is_up:
                self._check(proof, b"dialed", end.nonce)
                self._take_up(end)
            case ["far"] if end.dialed is None and end.peer is None:
                pass  # an agent's word that who comes is on another host
            case ["refused", *_]:
                self._drop(end)
            case _:
                raise MalformedBody("not a frame of a shard", found=str(frame[0])[:40])

    def _check(self, proof: bytes, role: bytes, nonce: bytes) -> None:
        if not hmac.compare_digest(proof, self._proof(role, nonce)):
            raise WrongSecret("who connects is no shard of this set", asked=self.me.group)

    def _take_hello(self, end: _LinkEnd, hello: dict[str, Any], proof: bytes) -> None:
        peer, nonce = _identity_of(hello)
        if (peer.group, peer.count) != (self.me.group, self.me.count):
            raise PeerRefused("a shard of another set", asked=f"{peer.group}, of {peer.count}")
        expected = end.dialed if end.dialed is not None else peer.slot
        if peer.slot == self.me.slot or peer.slot != expected or (end.dialed is None and peer.slot > self.me.slot):
            raise PeerRefused("not the shard that should be here", asked=f"slot {peer.slot}", found=f"{self.me.slot}")
        end.peer = peer
        if end.dialed is None:
            end.channel.write(encode_frame(["shard", self._hello(end), self._proof(b"accepted", nonce)]))
            return
        self._check(proof, b"accepted", end.nonce)
        end.channel.write(encode_frame(["proof", self._proof(b"dialed", nonce)]))
        self._take_up(end)

    def _take_up(self, end: _LinkEnd) -> None:
        peer = end.peer
        if peer is None:
            raise AssertionError("only who has said who it is comes up")
        newest = self._tokens.get(peer.slot)
        if newest is not None and peer.token < newest:
            raise StaleToken("a later incarnation of that shard is known", asked=str(peer.token), found=str(newest))
        before = self._slots.get(peer.slot)
        if before is not None:
            self._drop(before)  # its other end is gone, or about to find out
        self._tokens[peer.slot] = peer.token
        end.is_up = True
        self._up[peer.address] = self._slots[peer.slot] = end
        self._host.link_up(peer.slot, peer.address)

    # -- the carrier

    def message(self, address: ShardAddress, target: Pid, message: Any) -> bool:
        """Take a message along."""
        end = self._up.get(address)
        if end is None or len(end.waiting) >= WAITING_MAX:
            return False
        end.waiting.append((target.id, target.generation, message))
        return True

    def signal(self, address: ShardAddress, signal: tuple[Any, ...]) -> bool:
        """Take a signal along."""
        end = self._up.get(address)
        if end is None:
            return False
        end.waiting.append(signal)
        return True

    def why_not(self, address: ShardAddress) -> ExitReason:
        """Why there is no way to that shard."""
        return NOCONNECTION

    def whereis(self, name: str) -> Pid | None:
        """The process of the set that has the name."""
        return self.find_name(name)

    def flush(self, now_s: float) -> None:
        """Send what waits, to all that take it."""
        for end in list(self._slots.values()):
            while end.waiting and end.is_up and not end.channel.is_full:
                items = end.waiting[:BATCH_MAX]
                del end.waiting[:BATCH_MAX]
                self._send(end, items)
                end.said_s = now_s

    def _send(self, end: _LinkEnd, items: list[tuple[Any, ...]]) -> None:
        if end.peer is None:
            raise AssertionError("only links that are up have items")
        data = packed(items, end.peer.address, self._host.call_refused, by_value=True)
        try:
            frame = encode_frame(["items", data])
        except FrameTooLarge as error:
            if len(items) > 1:
                half = len(items) // 2
                self._send(end, items[:half])
                self._send(end, items[half:])
            elif items[0][0] == "call":
                self._host.call_refused(items[0][2], error)
            elif items[0][0] == "answer":
                self._send(end, [("answer", items[0][1], None, error)])
            return
        self.sent += len(items)
        end.channel.write(frame)


def _identity_of(hello: dict[str, Any]) -> tuple[ShardIdentity, bytes]:
    match hello:
        case {"version": version, "python": python} if version != PROTOCOL_VERSION or python != PYTHON:
            raise PeerRefused(
                "shards of one set speak one protocol and run one Python",
                asked=f"protocol {version!s:.20}, Python {python!s:.20}",
                found=f"protocol {PROTOCOL_VERSION}, Python {PYTHON}",
            )
        case {
            "group": str(group),
            "slot": int(slot),
            "count": int(count),
            "token": [int(epoch), int(index)],
            "host": str(host),
            "nonce": bytes(nonce),
        } if 0 <= slot < count <= SLOTS_MAX and epoch >= 0 and 0 <= index < 1 << SLOT_SHIFT and len(nonce) == 16:
            return ShardIdentity(group, slot, count, FencingToken(epoch, index), host), nonce
    raise MalformedBody("not the hello of a shard", found=str(hello)[:200])


def _nobody(_name: str) -> Pid | None:
    return None
