"""The members: who votes and who only learns, and how that changes: one voter at a time, or through a joint
configuration.

Raft dissertation (Ongaro 2014), chapter 4. A joint configuration has two halves, the voters it goes to and those it
comes from (``outgoing``); elections and commits need a majority of each. A change takes effect where its entry is
applied; ``RaftCore`` sees to it that one is under way at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .messages import NO_NODE, ConfChange, ConfState, Transition
from .quorum import decided, reached

CHANGES_MAX = 64
"""Changes in one request."""


class InvalidConfChange(Exception):
    """The change does not fit the configuration; the message says why."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members at one index of the log. Immutable: a change gives another one."""

    voters: frozenset[int] = frozenset()
    outgoing: frozenset[int] = frozenset()
    learners: frozenset[int] = frozenset()
    learners_next: frozenset[int] = frozenset()
    auto_leave: bool = False
    all_voters: frozenset[int] = field(init=False)
    members: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "all_voters", self.voters | self.outgoing)
        object.__setattr__(self, "members", self.all_voters | self.learners)
        assert not self.all_voters & self.learners, "a node is a voter or a learner, not both"
        assert self.learners_next <= self.outgoing - self.voters, "only a leaving voter becomes a learner later"
        assert self.outgoing or not self.auto_leave, "only a joint configuration is left"

    @classmethod
    def of(cls, state: ConfState) -> Configuration:
        """The configuration that *state* describes."""
        return cls(
            voters=frozenset(state.voters),
            outgoing=frozenset(state.voters_outgoing),
            learners=frozenset(state.learners),
            learners_next=frozenset(state.learners_next),
            auto_leave=state.auto_leave,
        )

    def state(self) -> ConfState:
        """The same as a ConfState, sorted."""
        return ConfState(
            voters=tuple(sorted(self.voters)),
            learners=tuple(sorted(self.learners)),
            voters_outgoing=tuple(sorted(self.outgoing)),
            learners_next=tuple(sorted(self.learners_next)),
            auto_leave=self.auto_leave,
        )

    @property
    def joint(self) -> bool:
        """Whether two majorities are needed."""
        return bool(self.outgoing)

    def reached(self, numbers: Mapping[int, int]) -> int:
        """The highest number that a quorum has reached: a majority of each half."""
        found = reached(self.voters, numbers)
        return min(found, reached(self.outgoing, numbers)) if self.outgoing else found

    def decided(self, votes: Mapping[int, bool]) -> bool | None:
        """True when a quorum said yes, False when none can, None while it is open."""
        halves = (decided(self.voters, votes), decided(self.outgoing, votes))
        if False in halves:
            return False
        return None if None in halves else True

    def changed(self, changes: Sequence[ConfChange], transition: Transition) -> Configuration:
        """The configuration after *changes*; none of them leaves a joint one.

        ``auto``: one change at once, several through a joint configuration that is left by itself. ``implicit``
        and ``explicit``: joint in any case, left by itself or on request. Raises InvalidConfChange.
        """
        if not changes:
            return self._left()
        if self.joint:
            raise InvalidConfChange("a joint configuration must be left before the next change")
        if len(changes) > CHANGES_MAX:
            raise InvalidConfChange(f"{len(changes)} changes in one request; at most {CHANGES_MAX}")
        if len({change.node for change in changes}) < len(changes):
            raise InvalidConfChange("a node is named twice")
        joint = transition != "auto" or len(changes) > 1
        return self._with(changes, joint, auto_leave=joint and transition != "explicit")

    def _with(self, changes: Sequence[ConfChange], joint: bool, auto_leave: bool) -> Configuration:
        voters, learners, learners_next = set(self.voters), set(self.learners), set[int]()
        for change in changes:
            node = change.node
            if node <= NO_NODE:
                raise InvalidConfChange(f"{node} is no node id")
            if change.kind == "add_learner" and joint and node in voters:
                learners_next.add(node)
            elif change.kind == "add_learner":
                learners.add(node)
            if change.kind == "add_voter":
                voters.add(node)
                learners.discard(node)
            else:
                voters.discard(node)
            if change.kind == "remove":
                learners.discard(node)
        if not voters:
            raise InvalidConfChange("no voter would be left")
        return Configuration(
            voters=frozenset(voters),
            outgoing=self.voters if joint else frozenset(),
            learners=frozenset(learners),
            learners_next=frozenset(learners_next),
            auto_leave=auto_leave,
        )

    def _left(self) -> Configuration:
        if not self.joint:
            raise InvalidConfChange("the configuration is not joint: there is nothing to leave")
        return Configuration(voters=self.voters, learners=self.learners | self.learners_next)
