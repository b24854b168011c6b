"""Raft's safety laws, checked over everything that ever happened in a test cluster (Raft paper, figure 3)."""

from __future__ import annotations

from actorgrid.actors.raft.messages import Entry, Message
from actorgrid.actors.raft.status import Status


class Laws:
    """Told what happens; raises AssertionError at the first breach."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.written: dict[tuple[int, int], tuple[Entry, int]] = {}
        self.committed: dict[int, tuple[Entry, int]] = {}
        self.states: dict[int, int] = {}
        self.reads: dict[bytes, int] = {}
        self.last_applied = 0
        self.acknowledged: set[int] = set()

    def sent(self, message: Message) -> None:
        """One vote for each voter and term: it is given when it leaves."""
        if message.kind == "vote_reply" and not message.reject:
            given = self.votes.setdefault((message.term, message.sender), message.to)
            assert given == message.to, (
                f"node {message.sender} voted for {given} and {message.to} in term {message.term}"
            )

    def looked(self, status: Status, log: list[Entry], before: Status | None) -> None:
        """After each step of a node: *log* is what it holds, *before* what it was."""
        assert status.applied <= status.commit <= status.last_index
        if before is not None:
            assert status.term >= before.term, f"node {status.node} went back from term {before.term}"
            assert status.commit >= before.commit, f"node {status.node} went back from commit {before.commit}"
            assert status.applied >= before.applied, f"node {status.node} went back from applied {before.applied}"
        if status.role == "leader":
            leader = self.leaders.setdefault(status.term, status.node)
            assert leader == status.node, f"term {status.term} has the leaders {leader} and {status.node}"
            if before is None or before.role != "leader":
                self._complete(status, log)

    def _complete(self, status: Status, log: list[Entry]) -> None:
        held = {entry.index: entry for entry in log}
        for index, (entry, term) in self.committed.items():
            if term < status.term and index >= status.first_index:
                assert held.get(index) == entry, (
                    f"node {status.node} leads term {status.term} without entry {index}, committed in term {term}"
                )

    def wrote(self, log: list[Entry]) -> None:
        """Log matching: one index and term, one entry, and one entry before it."""
        before = 0
        for entry in log:
            known, known_before = self.written.setdefault((entry.index, entry.term), (entry, before))
            assert known == entry, f"entry {entry.index} of term {entry.term} is two things"
            if before and known_before:
                assert known_before == before, f"entry {entry.index} of term {entry.term} follows two entries"
            elif before:
                self.written[(entry.index, entry.term)] = (entry, before)
            before = entry.term

    def applied(self, node: int, entry: Entry, term: int, state: int) -> None:
        """State machine safety: one index, one entry, one state."""
        known, _ = self.committed.setdefault(entry.index, (entry, term))
        assert known == entry, f"node {node} applied another entry {entry.index} than others"
        self.restored(node, entry.index, state)
        self.last_applied = max(self.last_applied, entry.index)

    def restored(self, node: int, index: int, state: int) -> None:
        """A state machine is in *state* at *index*."""
        known = self.states.setdefault(index, state)
        assert known == state, f"node {node} is in another state at {index} than others"

    def asked(self, context: bytes) -> None:
        """A read begins: it must see everything that anybody has applied by now."""
        self.reads[context] = self.last_applied

    def answered(self, context: bytes, index: int) -> None:
        """The read may be served at *index*."""
        assert index >= self.reads[context], (
            f"a read would be served at {index}; {self.reads[context]} was applied before it was asked"
        )
