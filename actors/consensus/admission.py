"""What a host of the cluster may have the leader put into the log: looked at before it is appended, by who sent it.

A member's certificate and its link prove which host speaks; the ledger says what is that host's. So a member

* reports and renews only itself, and starts and ends only attempts and leases that it runs;
* brings what its own doors take from people: jobs, locks, quotas, settings, drains, and what takes rights away;
* gives rights (API keys, join tokens, new members, certificates, the authority) only when it votes;
* never brings what only a leadership decides: grants, losses, expiries, digests, who is a member.

The leader judges by the state that holds all it knew to be committed when the proposal came, which is all that the
sender can have acted on. What is refused here was never in the log: it is counted, and its sender hears nothing, as of
any proposal that is lost on its way. What an honest host may not have appended, its own Consensus has refused already.

Decisions only. Bound: ``HELD_MAX`` proposals that wait for the state.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from actorgrid.actors.ledger.attempt_ids import attempt_of, job_of, number_of, rank_of
from actorgrid.actors.ledger.command import Command, Proposer, read_command, refuse_if_too_new
from actorgrid.actors.ledger.commands import (
    ChangeMember,
    CheckpointAttempt,
    EndAttempt,
    ReleaseLease,
    ReportReplica,
    StartAttempt,
    TakeSuccess,
)
from actorgrid.actors.ledger.entry_codec import decode_entry
from actorgrid.actors.ledger.field_checks import ABSENT
from actorgrid.actors.ledger.record_types import MemberRecord
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.messages import ConfState, Entry, Message
from actorgrid.errors import ActorGridError, NotAVoter

HELD_MAX = 1_000
HELD_BYTES_MAX = 16 * 2**20
HOSTS_NAMED_MAX = 8
TOLD_MAX = 256
"""Pairs of host and reason that are told of; then they are only counted."""


def refusal(command: Command, session: str, host_id: str, votes: bool, ledger: Ledger) -> str | None:
    """Why a well-formed *command* of that host is refused, in a few words without its values; else ``None``."""
    if "/" in session and session.partition("/")[0] != host_id:
        return "under another host's session"
    if isinstance(command, ChangeMember) and not (command.votes is ABSENT and command.fingerprint is ABSENT):
        return "gives itself rights"  # a vote is the leader's to give, a certificate a voter's
    match command.proposer:
        case Proposer.ITSELF:
            return None if command.about_host() == host_id else "about another host"
        case Proposer.ITS_WORK:
            owner = _runs_on(command, ledger)
            return None if owner in (None, host_id) else "about another host's work"
        case Proposer.VOTER:
            return None if votes else "gives rights, from a host that does not vote"
        case Proposer.DOOR:
            return None
    # A leader that has just ceased to be one loses what it had on its way; its successor decides anew.
    return "for the leader alone to decide"


def _runs_on(command: Command, ledger: Ledger) -> str | None:
    """The host of the attempt, member or lease that is named; ``None`` for what is over, and "" for what never was."""
    of_work = ReleaseLease | StartAttempt | CheckpointAttempt | EndAttempt | TakeSuccess | ReportReplica
    assert isinstance(command, of_work), "all that Proposer.ITS_WORK has"
    id = command.lease_id if isinstance(command, ReleaseLease) else command.attempt_id
    allocation = ledger.allocations.get(id)
    if allocation is not None:
        return str(allocation["host"])
    if isinstance(command, ReleaseLease):
        return None  # to release what is released is no error
    job = ledger.jobs.get(job_of(id))
    if job is None:
        return None  # over, or unknown: applied, it is answered so
    attempt = next((each for each in job["attempts"] if each["number"] == number_of(id)), None)
    if attempt is None:
        last = job["attempts"][-1]["number"] if job["attempts"] else 0
        return "" if (number_of(id) or 0) > last else None
    rank = rank_of(id)
    if rank is None or attempt_of(id) != attempt["attempt_id"]:
        return str(attempt.get("host", ""))
    members = attempt.get("members", ())
    return str(members[rank]["host"]) if rank < len(members) else ""


def refuse_here(command: Command, votes: bool, members: Mapping[str, MemberRecord], config: ConfState) -> None:
    """Refuse a command of this host's own servers by the same rules, with words for people. Raises NotAVoter."""
    if command.proposer is not Proposer.VOTER or votes or not members:
        return
    able = sorted(host_id for host_id, member in members.items() if member["node"] in config.voters)[:HOSTS_NAMED_MAX]
    raise NotAVoter(
        "this host does not vote, and what gives rights is decided on hosts that do",
        asked=command.verb,
        found=f"those that vote: {', '.join(able) or 'none known here'}",
        hint="ask there: --url https://HOST:7400, or run the command on that host",
    )


class Admission:
    """*ledger* gives the state, *votes* whether a node does, *append* takes what may be appended. ``refused`` counts by
    reason; *complain* is told (host, reason) the first time."""

    def __init__(
        self,
        ledger: Callable[[], Ledger],
        votes: Callable[[int], bool],
        append: Callable[[Message], None],
        complain: Callable[[str, str], None],
    ) -> None:
        self._ledger, self._votes = ledger, votes
        self._append, self._complain = append, complain
        self._told: set[tuple[str, str]] = set()
        self._held: deque[tuple[int, str, Message]] = deque()
        self._held_bytes = 0
        self.refused: Counter[str] = Counter()

    def came(self, host_id: str, message: Message, committed: int | None) -> None:
        """Take a proposal of that host.

        *committed*: up to where anything may be committed; ``None``: we do not lead.
        """
        if committed is None:
            return
        size = sum(len(entry.data) for entry in message.entries)
        if len(self._held) >= HELD_MAX or (self._held and self._held_bytes + size > HELD_BYTES_MAX):
            self._refuse(host_id, "too many wait")
            return
        self._held.append((committed, host_id, message))
        self._held_bytes += size
        self.applied()

    def applied(self) -> None:
        """Look again, in order of arrival, at the proposals that waited for the state, which has changed."""
        while self._held and self._held[0][0] <= self._ledger().index:
            _, host_id, message = self._held.popleft()
            self._held_bytes -= sum(len(entry.data) for entry in message.entries)
            entries = tuple(entry for entry in message.entries if self._admits(host_id, message.sender, entry))
            if entries:
                self._append(replace(message, entries=entries))

    def drop(self) -> None:
        """Drop what waits, as this host leads no more: whoever proposed asks the next leader."""
        self._held.clear()
        self._held_bytes = 0

    def _admits(self, host_id: str, node: int, entry: Entry) -> bool:
        if entry.kind != "command":
            return self._refuse(host_id, "changes the voters")
        ledger = self._ledger()
        try:
            session, _, plain = decode_entry(entry.data)
            command = read_command(plain)
            refuse_if_too_new(command, ledger.members, plain["v"])
        except ActorGridError as error:
            return self._refuse(host_id, error.code)
        why = refusal(command, session, host_id, self._votes(node), ledger)
        return True if why is None else self._refuse(host_id, why)

    def _refuse(self, host_id: str, why: str) -> bool:
        self.refused[why] += 1
        if len(self._told) < TOLD_MAX and (host_id, why) not in self._told:
            self._told.add((host_id, why))
            self._complain(host_id, why)
        return False
