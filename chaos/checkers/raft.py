"""Raft's safety properties (Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", figure 3)."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from actorgrid.actors.ledger.outcome import Outcome
from actorgrid.actors.raft.codec import decode_conf_change
from actorgrid.actors.raft.configuration import Configuration, InvalidConfChange
from actorgrid.actors.raft.messages import ConfState, Entry
from actorgrid.errors import MalformedMessage

from .checker import Checker, Host

DIGEST_EVERY = 32


class ElectionSafety(Checker):
    """Checks that at most one host leads in a term, and that no host votes for two in one, whatever it forgot."""

    def __init__(self) -> None:
        self._leaders: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}

    def leads(self, host: Host, term: int) -> None:
        """Check that the first to lead in a term is the only one."""
        before = self._leaders.setdefault(term, host.id)
        if before != host.id:
            self.fail("two hosts lead in one term", asked=f"host {host.id} in term {term}", found=f"host {before} did")

    def votes(self, host: Host, term: int, candidate: int) -> None:
        """Check that the first vote in a term is the only one."""
        before = self._votes.setdefault((host.id, term), candidate)
        if before != candidate:
            self.fail(
                "a host votes for two in one term",
                asked=f"host {host.id} for {candidate} in term {term}",
                found=f"it voted for {before} before",
            )


class LogMatching(Checker):
    """Checks that two logs with an entry of the same index and term are the same up to there.

    By induction it is enough that such entries hold the same and stand after entries of the same term.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[int | None, str, bytes]] = {}

    def written(self, host: Host, entries: tuple[Entry, ...]) -> None:
        """Compare with the first entry of that index and term that was written anywhere."""
        before: int | None = None
        for number, entry in enumerate(entries):
            before = entries[number - 1].term if number else host.durable.term(entry.index - 1)
            known = self._known.setdefault((entry.index, entry.term), (before, entry.kind, entry.data))
            same_place = known[0] is None or before is None or known[0] == before
            if not same_place or known[1:] != (entry.kind, entry.data):
                self.fail(
                    "two logs differ before an entry they share",
                    asked=f"host {host.id} writes entry {entry.index} of term {entry.term} after one of term {before}",
                    found=f"elsewhere it stands after one of term {known[0]}",
                )


class StateMachineSafety(Checker):
    """All hosts apply the same entries with the same outcomes to the same state; a leader has all that is committed.

    The state's digest is compared at every 32nd index, each outcome at every one.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[int, bytes]] = {}
        self._outcomes: dict[int, bytes] = {}
        self._digests: dict[int, str] = {}
        self._applied: dict[int, int] = {}
        self._highest = 0

    def leads(self, host: Host, term: int) -> None:
        """Leader completeness: the entry committed last is in its log; with log matching, so are all before."""
        if not self._highest:
            return
        committed_term = self._entries[self._highest][0]
        if committed_term < term and not host.holds(self._highest, committed_term):
            self.fail(
                "a leader's log lacks a committed entry",
                asked=f"host {host.id} leads in term {term}",
                found=f"entry {self._highest} of term {committed_term} is committed, its log has "
                f"{host.durable.term(self._highest)} there",
            )

    def applied(self, host: Host, entry: Entry, outcome: Outcome, state: Any) -> None:
        """Compare with what the first host that applied this index had."""
        known = self._entries.setdefault(entry.index, (entry.term, entry.data))
        if known != (entry.term, entry.data):
            self.fail(
                "two hosts apply different entries at one index",
                asked=f"host {host.id} applies entry {entry.index} of term {entry.term}",
                found=f"another applied one of term {known[0]} there",
            )
        self._highest = max(self._highest, entry.index)
        told = repr((outcome.result, outcome.error, outcome.repeated, outcome.changes)).encode()
        shown = blake2b(told, digest_size=16).digest()
        if self._outcomes.setdefault(entry.index, shown) != shown:
            self.fail(
                "one entry has two outcomes",
                asked=f"entry {entry.index} on host {host.id}",
                found=f"{outcome.result or outcome.error}",
            )
        if entry.index % DIGEST_EVERY == 0:
            self._compare(host, entry.index, state)

    def restored(self, host: Host, index: int, state: Any) -> None:
        """A snapshot's state is that of its index, whatever it says."""
        if index:
            self._compare(host, index, state)

    def _compare(self, host: Host, index: int, state: Any) -> None:
        digest = state.digest()
        if self._digests.setdefault(index, digest) != digest:
            self.fail("two hosts have different states at one index", asked=f"host {host.id} at entry {index}")


class MembershipChanges(Checker):
    """Checks that every committed change of the members fits those that it changes.

    Hosts pass over one that does not, so that a hostile leader stops nobody; of an honest one it may never come. It
    does when two changes are under way at once, which lets two majorities decide apart (Ongaro's dissertation, 4.1):
    rarely does a run get that far.
    """

    def changes_members(self, host: Host, before: ConfState, entry: Entry) -> None:
        """Check the change before the host applies it."""
        try:
            change = decode_conf_change(entry.data)
            if not isinstance(change, ConfState):  # the beginning of a log names its members
                Configuration.of(before).changed(*change)
        except (InvalidConfChange, MalformedMessage) as error:
            self.fail(
                "a change of the members that does not fit them is committed",
                asked=f"host {host.id} applies entry {entry.index} of term {entry.term} to {before}",
                found=str(error),
            )
