"""The voters a node knows of: whom it obeys as a leader, votes for, and follows into a later term.

A member's link proves which node speaks, not that it votes. A leader's words, a candidate's, and a later term count
from those that vote in a configuration that this node has seen: the one it applied, those of its log, committed or
not, those from before. What it has seen may be old: it was away, and a voter of today was none then. For such a sender
it asks the voters that it knows, and one of them is enough: it could speak as a leader itself. A node whose log is
older than what it was told when it joined (``RaftConfig.electorate``) knows those voters, too; one that was told
nothing, and has no configuration yet, believes every member. Why so: docs/decisions/0017, 0096.

Bound: ``ASKED_MAX`` senders asked for, each once in ``election_ticks``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from actorgrid.errors import MalformedMessage

from .codec import decode_conf_change
from .configuration import Configuration, InvalidConfChange
from .log import SCAN_BYTES, RaftLog
from .messages import NO_NODE, ConfState, Entry, Message, MessageKind, RaftConfig
from .votes import vote_request

ASKED_MAX = 64
"""Senders that are asked for and not vouched for yet: each costs memory, and a message to every voter."""
FROM_LEADER: tuple[MessageKind, ...] = ("append", "heartbeat", "snapshot", "timeout_now", "damaged")


class Electorate:
    """The voters that one node knows of. ``refused`` counts the messages that it did not obey, by reason."""

    def __init__(self, config: RaftConfig, configuration: Configuration, log: RaftLog) -> None:
        self._node, self._pause = config.node, config.election_ticks
        self._known: set[int] = set(configuration.all_voters)
        self._told = config.electorate
        self._asked: dict[int, int] = {}
        self._ticks = 0
        self.refused: Counter[str] = Counter()
        # The unapplied end of the log too: a voter that it adds may lead already.
        at = max(log.applied + 1, log.first_index)
        while at <= log.last_index:
            page = log.entries(at, log.last_index + 1, SCAN_BYTES)
            self.read(page)
            at += len(page)

    def told(self, voters: frozenset[int]) -> None:
        """Take *voters* in place of those that this node was told of before."""
        self._told = voters
        self._asked.clear()  # of voters that may be gone: ask these

    def tick(self) -> None:
        """Take one tick."""
        self._ticks += 1

    def seen(self, configuration: Configuration) -> None:
        """Count the voters of *configuration*, which was applied or came with a snapshot, among those known."""
        # Nobody is taken out: configurations from before count in this life of the process (docs/decisions/0017).
        self._known |= configuration.all_voters

    def read(self, entries: Iterable[Entry]) -> None:
        """Count the voters that *entries* of the log add, committed or not, among those known."""
        for entry in entries:
            if entry.kind != "conf_change":
                continue
            try:
                request = decode_conf_change(entry.data)
            except MalformedMessage:
                continue
            if isinstance(request, ConfState):
                self._known.update(request.voters, request.voters_outgoing)
            else:
                self._known.update(change.node for change in request[0] if change.kind == "add_voter")

    def knows(self, node: int) -> bool:
        """Whether *node* votes, or did, as far as is known here."""
        return node in self._known or node in self._told

    def heeds(self, node: int) -> bool:
        """Whether *node* may say that it leads: it votes as far as is known, or nothing is known of who does."""
        return self.knows(node) or not (self._known or self._told)

    def counts(self, msg: Message, term: int, leader: int) -> bool:
        """Whether *msg* may do what it says to a node in *term* that follows *leader*."""
        if self.heeds(msg.sender):
            return True  # who was told nothing, and has just joined, could never hear of any leader otherwise
        # Of a leader not known to vote: only an old one, which is told of the later term, or the one followed already.
        if msg.kind in FROM_LEADER:
            return msg.term < term or (msg.sender == leader and msg.term == term)
        # A vote might go to one who may not lead, and a later term would depose who does; a pre-vote does neither.
        return msg.kind != "vote" and (msg.kind == "pre_vote" or msg.term <= term)

    def doubt(self, node: int, term: int, log: RaftLog) -> list[Message]:
        """The questions to the known voters whether *node*, whose message does not count, votes; sent in *term*.

        None where it was asked for in the last ``election_ticks``, or ``ASKED_MAX`` others wait for an answer.
        """
        self.refused["of a node that is not known to vote"] += 1
        since = self._asked.get(node)
        if len(self._asked) >= ASKED_MAX if since is None else self._ticks - since < self._pause:
            return []
        self._asked[node] = self._ticks
        voters = sorted((self._known | self._told) - {self._node, node})
        return [vote_request("pre_vote", voter, self._node, term, log, asked=node) for voter in voters]

    def answered(self, msg: Message) -> None:
        """Take a voter's answer to a question whether a node votes."""
        if msg.kind == "pre_vote_reply" and self.knows(msg.sender) and msg.index in self._asked:
            self._known.add(msg.index)
            del self._asked[msg.index]

    def vouched(self, request: Message) -> int:
        """The answer to a question whether a node votes: that node, if it does."""
        return request.sequence if request.kind == "pre_vote" and request.sequence in self._known else NO_NODE


def configuration_after(before: Configuration, entry: Entry) -> Configuration:
    """The configuration once *entry* is applied; the same, on every member, where it is no change or does not fit."""
    try:
        request = decode_conf_change(entry.data)
        return Configuration.of(request) if isinstance(request, ConfState) else before.changed(*request)
    except (MalformedMessage, InvalidConfChange):
        return before
