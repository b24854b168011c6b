"""How a host that has no log yet hears anew who votes, when none of the voters that it was told of leads any more.

It asks every host that it has a link to. One that votes has its join server sign a statement for it
(``security/voters_statement.py``); one that does not passes the question on to those that vote, and their answer back.
Whoever brings it, what counts is the signature, that it answers this host's own question, and that it is not older than
what this host was told before (``host/enrolment.py``).

Bounds: a question every ``ASK_S``; of what one host sends a question in ``ANSWER_S``; an answer is passed on for
``WAIT_S``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgpack

from actorgrid.actors.ledger.record_types import MemberRecord
from actorgrid.errors import ActorGridError, MalformedMessage
from actorgrid.supervisors.server import Server

from ..security.messages import StateVoters

ASK_S, ANSWER_S, WAIT_S = 2.0, 0.1, 10.0
CHALLENGE_BYTES = 32
CHALLENGES_KEPT = 4
"""An answer may come after the next question."""
BODY_BYTES_MAX = 10 * 1024
HOSTS_MAX = 1_000
"""Hosts whose last question is remembered."""
PASSED_TO_MAX = 5
NEWCOMER_HINT = (
    "this host has not had the ledger since it joined, and none of those that voted then has brought it. It asks on;"
    " where all of them are gone, start it with --join MEMBER --token TOKEN, of a new token: it hears anew who votes"
)
_HOST_CHARACTERS_MAX = 63


@dataclass(frozen=True, slots=True)
class ToldVoters:
    """Who votes, as this host was told: the members by host id, as of ``position`` (epoch and index) of the log."""

    position: tuple[int, int]
    members: Mapping[str, MemberRecord]

    @property
    def nodes(self) -> frozenset[int]:
        """Their numbers in Raft."""
        return frozenset(int(record["node"]) for record in self.members.values())


Retell = Callable[[bytes, Collection[bytes]], ToldVoters]
"""(statement, challenges): checks what came, keeps it on disk, and gives it. Raises as ``check_voters``, and
StatementRefused for one that is older than what is kept."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """One message: a question of *host_id* (``ask``: with its challenge), or the answer (``stated``: the statement)."""

    kind: str
    host_id: str
    data: bytes

    def encode(self) -> bytes:
        """The bytes that go over a link."""
        packed: bytes = msgpack.packb([self.kind, self.host_id, self.data])
        return packed


def read_inquiry(body: bytes) -> Inquiry:
    """Read what a member sent. Raises MalformedMessage."""
    if len(body) > BODY_BYTES_MAX:
        raise MalformedMessage("a question or answer about who votes is too large", found=f"{len(body)} bytes")
    try:
        row = msgpack.unpackb(body, raw=False)
    except (ValueError, msgpack.UnpackException, RecursionError, TypeError) as error:
        raise MalformedMessage(f"a question or answer about who votes is not msgpack: {type(error).__name__}") from None
    if not isinstance(row, list) or len(row) != 3:
        raise MalformedMessage("a question or answer about who votes has three parts", found=type(row).__name__)
    kind, host_id, data = row
    if kind not in ("ask", "stated") or not isinstance(host_id, str) or not isinstance(data, bytes):
        raise MalformedMessage("no question or answer about who votes", found=str(kind)[:40])
    if not 0 < len(host_id) <= _HOST_CHARACTERS_MAX or (kind == "ask" and len(data) != CHALLENGE_BYTES):
        raise MalformedMessage("a question about who votes names a host and has a challenge", found=f"{len(data)}")
    return Inquiry(kind, host_id, data)


class InquiryLinks(Protocol):
    """What this needs of the host's links and ledger."""

    @property
    def members(self) -> Mapping[str, MemberRecord]:
        """Those of the ledger here, by host id."""

    def voters(self) -> list[str]:
        """Which of them vote, as of what is applied here."""

    def linked(self) -> list[str]:
        """The hosts that a question goes to."""

    def inquire(self, host_id: str, body: bytes) -> None:
        """Bring a host a question or an answer, or lose it."""

    def told(self, told: ToldVoters) -> None:
        """Take a statement that is right."""


class VoterInquiries:
    """Both sides of it, for one host. *retell*: ``None`` for one that asks nothing, as it founded the cluster."""

    def __init__(self, server: Server, retell: Retell | None, around: InquiryLinks) -> None:
        self._server, self._retell, self._around = server, retell, around
        self._host_id = str(server.host.host_id)
        self.refused_total = 0
        self._asked_at = float("-inf")
        self._challenges: deque[bytes] = deque(maxlen=CHALLENGES_KEPT)
        self._answered_at: dict[str, float] = {}
        self._passing: dict[str, float] = {}

    def ask(self) -> None:
        """Ask, unless that was done a moment ago."""
        now = self._server.runtime.monotonic()
        if self._retell is None or now - self._asked_at < ASK_S:
            return
        self._asked_at = now
        # Of chance, so that an answer of another day, which somebody kept, is none to this.
        self._challenges.append(os.urandom(CHALLENGE_BYTES))
        body = Inquiry("ask", self._host_id, self._challenges[-1]).encode()
        for host_id in self._around.linked():
            self._around.inquire(host_id, body)

    def came(self, sender: str, body: bytes) -> None:
        """Take what *sender* sent; what is malformed or not wanted is counted."""
        try:
            inquiry = read_inquiry(body)
        except MalformedMessage as error:
            self._refuse(sender, error)
            return
        now = self._server.runtime.monotonic()
        if inquiry.kind == "ask":
            self._asked(sender, inquiry, now)
        elif inquiry.host_id == self._host_id:
            self._take(sender, inquiry.data)
        elif self._passing.pop(inquiry.host_id, float("-inf")) >= now:
            self._around.inquire(inquiry.host_id, body)

    def _asked(self, sender: str, inquiry: Inquiry, now: float) -> None:
        if inquiry.host_id not in self._around.members or inquiry.host_id == self._host_id:
            return
        # By who sends it, not for whom it is: else a member could keep another from ever getting an answer.
        if now - self._answered_at.get(sender, float("-inf")) < ANSWER_S:
            return
        if len(self._answered_at) >= HOSTS_MAX:
            self._answered_at.clear()
        self._answered_at[sender] = now
        voters = self._around.voters()
        if self._host_id in voters:
            self._server.spawn(self._answer(sender, inquiry))
        elif sender == inquiry.host_id:  # one step: a question that was passed on is not passed on again
            if len(self._passing) >= HOSTS_MAX:
                self._passing.clear()
            self._passing[inquiry.host_id] = now + WAIT_S
            for voter in voters[:PASSED_TO_MAX]:
                self._around.inquire(voter, inquiry.encode())

    async def _answer(self, sender: str, inquiry: Inquiry) -> None:
        try:
            answer = await self._server.call("join_server", StateVoters(inquiry.host_id, inquiry.data))
        except ActorGridError as error:
            self._server.log.info("host %s is not told who votes: %s", inquiry.host_id, error)
            return
        self._around.inquire(sender, Inquiry("stated", inquiry.host_id, answer["statement"]).encode())

    def _take(self, sender: str, statement: bytes) -> None:
        if self._retell is None or not self._challenges:
            return
        try:
            told = self._retell(statement, tuple(self._challenges))
        except ActorGridError as error:
            self._refuse(sender, error)
            return
        # Those that are still on their way answer questions of before: they would be taken for news, and cost a write.
        self._challenges.clear()
        self._around.told(told)

    def _refuse(self, sender: str, error: ActorGridError) -> None:
        self.refused_total += 1
        if self.refused_total == 1:  # each is a member's, and may send as many as it likes
            self._server.log.warning("what %s says of who votes is not taken: %s", sender, error)
