"""Mutants of the Raft core: one decision each, turned wrong."""

from __future__ import annotations

from collections.abc import Sequence

from actorgrid.actors.raft.core import RaftCore
from actorgrid.actors.raft.leadership import Leadership
from actorgrid.actors.raft.log import RaftLog
from actorgrid.actors.raft.messages import DroppedReason, Entry, HardState, Message
from actorgrid.actors.raft.progress import Progress
from actorgrid.actors.raft.quorum import EVERYTHING


class VoteForgotten(RaftCore):
    """Starts with the stored term, but no vote."""

    def remembered(self, stored: HardState) -> tuple[int, int]:
        """Forget the vote."""
        return stored.term, 0


class TermForgotten(RaftCore):
    """Starts in the term of its last entry: term and vote are kept in memory only."""

    def remembered(self, stored: HardState) -> tuple[int, int]:
        """Forget term and vote."""
        return self._log.last_term, 0


class VotesTwice(RaftCore):
    """Votes for everyone who asks in a term."""

    def has_vote_for(self, candidate: int) -> bool:
        """Always."""
        return True


class VotesForShortLogs(RaftCore):
    """Votes for candidates whose log lacks what its own has."""

    def would_vote(self, msg: Message) -> bool:
        """Always."""
        return True


class _CountsAnyTerm(Leadership):
    def countable(self, index: int) -> bool:
        return True


class CommitsOldTerms(RaftCore):
    """Commits entries of earlier terms by counting (figure 8 of the paper)."""

    leadership_class = _CountsAnyTerm


class _ChangesEarly(Leadership):
    def conf_change_refusal(self) -> DroppedReason | None:
        return None


class ConfChangeEarly(RaftCore):
    """Changes the members at any time, also while another change is pending."""

    leadership_class = _ChangesEarly


class _ChangesBeforeOwnCommit(Leadership):
    def conf_change_refusal(self) -> DroppedReason | None:
        return "conf_change_pending" if self.pending_conf_index > self._log.applied else None


class ConfChangeBeforeOwnCommit(RaftCore):
    """A new leader changes the members before it has committed anything, whatever change its log holds already."""

    leadership_class = _ChangesBeforeOwnCommit

    def _lead(self) -> None:
        super()._lead()
        assert self._leadership is not None, "it just began to lead"
        self._leadership.pending_conf_index = 0


class _NeedsNoQuorum(Leadership):
    def confirmed_sequence(self) -> int:
        return EVERYTHING


class ReadsWithoutQuorum(RaftCore):
    """The leader confirms reads without asking whether it still leads."""

    leadership_class = _NeedsNoQuorum


class _ReadsEarly(Leadership):
    def may_read(self) -> bool:
        return True


class ReadsBeforeFirstCommit(RaftCore):
    """A new leader gives out its commit index before it committed anything itself."""

    leadership_class = _ReadsEarly


class _TellsCommitToAll(Leadership):
    def commit_to_tell(self, progress: Progress) -> int:
        return self._log.commit


class HeartbeatCommitsAll(RaftCore):
    """Heartbeats carry the leader's commit index to followers whose logs are not known to match."""

    leadership_class = _TellsCommitToAll


class _CutsAlways(RaftLog):
    def first_news(self, entries: Sequence[Entry]) -> int:
        return 0


class CutsOnEveryAppend(RaftCore):
    """Every append cuts the log after it, so that a late one takes away what later ones brought."""

    log_class = _CutsAlways


class _ConfirmsReplaced(RaftLog):
    def is_unstable(self, index: int, term: int) -> bool:
        return 0 <= index - self._offset < len(self._unstable)


class ConfirmsReplacedEntries(RaftCore):
    """A sync that ends after its entries were replaced counts for the new ones (the ABA of asynchronous storage)."""

    log_class = _ConfirmsReplaced
