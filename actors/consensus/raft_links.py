"""Raft's messages between the voters of a cluster: which host a node is, and whether a message is of whom it says."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import actorgrid
from actorgrid.actors.ledger.commands import FoundCluster
from actorgrid.actors.ledger.record_types import MemberRecord, RemovedRecord
from actorgrid.actors.raft.codec import MessageEncoder, decode_message
from actorgrid.actors.raft.messages import Message
from actorgrid.errors import FrameTooLarge, MailboxFull, MalformedMessage
from actorgrid.supervisors.server import Server
from actorgrid.transports.peer.calls import NetLoop, OnCast, OnStream
from actorgrid.transports.peer.frames import PAYLOAD_BYTES_MAX
from actorgrid.transports.peer.hosts import PeerHosts
from actorgrid.transports.peer.link import Admit
from actorgrid.transports.peer.net import PeerNet, Resolve

from .bulk_snapshots import BulkSnapshots
from .large_messages import LargeMessages
from .member_links import addresses_of, refusal
from .voter_inquiries import Retell, ToldVoters, VoterInquiries

if TYPE_CHECKING:
    from .replica import Replica

TARGET, INQUIRY_TARGET = "raft", "voters"
INQUIRED_MAX = 16
SOUGHT_MAX = 5
"""Links to members that are kept ready while no voter is known."""
GOODBYE_S = 3.0
"""How long the links of a host that left in order are kept, for it to hear that it has left."""
log = logging.getLogger("actorgrid.consensus")

Members = Mapping[str, MemberRecord]


class MakeNet(Protocol):
    """Makes the net of this host, over sockets or in memory."""

    def __call__(
        self, loop: NetLoop, resolve: Resolve, admit: Admit, on_cast: OnCast, on_stream: OnStream
    ) -> PeerHosts:
        """The net; it listens when this returns."""


@dataclass(frozen=True, slots=True)
class VoterPlan:
    """What this host is to the cluster's consensus from its first moment.

    ``node`` is its number there. ``founding``: it began the cluster by itself; else its log comes from others.
    ``seeds`` are members as it was told when it joined, by host id; they count until the ledger has come to its own
    entry, behind which all of theirs are; where ``stated`` says as of which epoch and index of the log they are the
    voters, until it has come there.
    """

    node: int
    make_net: MakeNet
    founding: bool = False
    seeds: Mapping[str, MemberRecord] = field(default_factory=dict)
    renew: Callable[[PeerHosts], None] | None = None
    """Has the net use what lies on disk now for its next links."""
    founds: FoundCluster | None = None
    """The command that makes the ledger a cluster's, for its first host to propose once it leads."""
    stated: tuple[int, int] | None = None
    retell: Retell | None = None
    """Takes another statement of who votes."""

    @property
    def told(self) -> ToldVoters | None:
        """Who votes, as a voter has signed it for this host; ``None`` where nobody did."""
        return None if self.stated is None else ToldVoters(self.stated, self.seeds)


class RaftLinks:
    """This host's links to the other voters and learners: Raft's messages out, and in once their sender is checked.

    *replica* has the ledger with its members, and who votes. *on_refused* is told which host refused this one with
    which words; *on_message* is given each message that is of whom it says, and that host.
    """

    def __init__(
        self,
        server: Server,
        plan: VoterPlan,
        replica: Replica,
        on_refused: Callable[[str, str], None],
        on_message: Callable[[str, Message], None],
    ) -> None:
        self._loop: NetLoop = server.runtime
        self._replica = replica
        self._seeds, self._stated = plan.seeds, plan.stated
        self._node = plan.node
        self._seeded = bool(plan.seeds)
        self._on_message = on_message
        self.refused: Counter[str] = Counter()
        self._hosts: dict[int, str] = {}
        self._encoder = MessageEncoder()
        self._renew = plan.renew
        self._large = LargeMessages(
            lambda host_id, target, head: self._net.open_stream(host_id, target, head), self._take_body, self._lost
        )
        self._inquiries = VoterInquiries(server, plan.retell, self)
        self._net = plan.make_net(self._loop, self._resolve, self._admit, self._take, self._large.take)
        self._net.on_refused = on_refused
        self._bulk: BulkSnapshots | None = None
        if isinstance(self._net, PeerNet):  # there are no threads in a net in memory
            self._bulk = BulkSnapshots(
                self._loop, self._net, actorgrid.__version__, replica.outgoing_snapshot, on_message
            )
        self.members_changed()

    def member_changed(self, host_id: str, gone: bool) -> None:
        """Follow a change of one member's record. One that left in order keeps its links a little, to hear of it."""
        removed = self._removed.get(host_id)
        if gone and removed is not None and removed.get("left"):
            self._loop.after(GOODBYE_S, self.members_changed)
        else:
            self.members_changed()

    def members_changed(self) -> None:
        """Follow a change of the members: links to those who are none any more are closed."""
        self._hosts = {int(record["node"]): host_id for host_id, record in self._known().items()}
        self._net.drop_refused()
        if self._bulk is not None:
            self._bulk.drop_refused(self._admit)

    def keep(self, nodes: Sequence[int]) -> None:
        """Have links to these nodes ready."""
        self._net.keep([self._hosts[node] for node in nodes if node in self._hosts])

    def seek(self) -> None:
        """Look for a leader: have links to the voters ready, or to some members while no voter is known.

        Where the log is older than what this host was told of who votes, ask who does now.
        """
        self.keep(self._replica.members.voters or list(self._hosts)[:SOUGHT_MAX])
        if self._replica.lacks_electorate:
            self._inquiries.ask()

    def send(self, messages: Sequence[Message]) -> None:
        """Send each message, or lose it as Raft expects of a network; where too much waits, the core is told."""
        for message in messages:
            host_id = self._hosts.get(message.to)
            if host_id is None:
                self.refused["to a node that is no member"] += 1
                continue
            if message.kind == "snapshot" and self._bulk is not None and self._bulk.holds_back(host_id, message):
                continue
            try:
                body = self._encoder.encode(message)
                if len(body) > PAYLOAD_BYTES_MAX:
                    self._large.send(host_id, message.kind, body)
                else:
                    self._net.cast(host_id, TARGET, body)
            except (MailboxFull, FrameTooLarge) as error:
                log.debug("to %s: %s", host_id, error)
                self.refused[error.code] += 1
                self._replica.unreachable(message.to)

    # -- what inquiries about who votes need (see ``voter_inquiries.InquiryLinks``)

    @property
    def members(self) -> Members:
        """See ``InquiryLinks``."""
        return self._replica.ledger.members

    def voters(self) -> list[str]:
        """See ``InquiryLinks``."""
        return [id for id, record in self.members.items() if self._replica.votes(int(record["node"]))]

    def linked(self) -> list[str]:
        """See ``InquiryLinks``."""
        return [id for node, id in self._hosts.items() if node != self._node][:INQUIRED_MAX]

    def told(self, told: ToldVoters) -> None:
        """See ``InquiryLinks``."""
        self._replica.told_voters(told)
        self._seeds, self._stated, self._seeded = told.members, told.position, True
        self.members_changed()

    def inquire(self, host_id: str, body: bytes) -> None:
        """See ``InquiryLinks``."""
        try:
            self._net.cast(host_id, INQUIRY_TARGET, body)
        except (MailboxFull, FrameTooLarge) as error:
            self.refused[error.code] += 1

    def renew(self) -> None:
        """Use this host's new certificate and trust anchors, which lie on disk, for the next links."""
        if self._renew is not None:
            self._renew(self._net)

    def stats(self) -> dict[str, Any]:
        """Counts of the net below, of refused messages by reason, and of large messages."""
        return {
            **self._net.stats(),
            "refused_messages": dict(self.refused),
            "large_messages": {
                "sent": self._large.sent_total,
                "received": self._large.received_total,
                "lost": self._large.lost_total,
            },
            "snapshots": {} if self._bulk is None else self._bulk.stats(),
        }

    def close(self) -> None:
        """Close all links."""
        if self._bulk is not None:
            self._bulk.close()
        self._net.close()

    # -- what the net asks

    def _known(self) -> Members:
        members = self.members
        if not self._seeded:
            return members
        if self._stated is None:
            known = any(record["node"] == self._node for record in members.values())
        else:
            known = (self._replica.ledger.epoch, self._replica.ledger.index) >= self._stated
        if known:
            self._seeded = False
            return members
        return {**members, **self._seeds}

    @property
    def _removed(self) -> Mapping[str, RemovedRecord]:
        return self._replica.ledger.removed

    def _resolve(self, host_id: str) -> list[tuple[str, int]]:
        return addresses_of(self._known().get(host_id), "raft")

    def _admit(self, host_id: str, fingerprint: str) -> str | None:
        return refusal(host_id, self._known().get(host_id), fingerprint, self._removed.get(host_id))

    def _take(self, host_id: str, target: str, body: bytes) -> None:
        if target == INQUIRY_TARGET:
            self._inquiries.came(host_id, body)
            return
        if target != TARGET:
            self.refused["to another target"] += 1
            return
        self._take_body(host_id, body)

    def _lost(self, host_id: str) -> None:
        node = next((node for node, name in self._hosts.items() if name == host_id), None)
        if node is None:
            return
        self.refused["a large message was lost"] += 1
        self._replica.unreachable(node)

    def _take_body(self, host_id: str, body: bytes) -> None:
        try:
            message = decode_message(body)
        except MalformedMessage as error:
            log.warning("from %s: %s", host_id, error)
            self.refused[error.code] += 1
            return
        if self._hosts.get(message.sender) != host_id:
            # A member that speaks for another: its certificate is good, its software is not.
            self.refused["of another sender"] += 1
            return
        # Not for whoever says that it leads: it would take memory, and the place of a snapshot that a leader sends.
        bulk = self._bulk if message.kind == "snapshot" and self._replica.heeds(message.sender) else None
        if bulk is not None and bulk.takes(host_id, self._known().get(host_id), message):
            return
        self._on_message(host_id, message)
