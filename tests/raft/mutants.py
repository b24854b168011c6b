"""Known bugs of Raft implementations, each put back by changing one decision; never anything but test material.

A mutant is named for the bug and patches one method. ``CAUGHT_BY`` says which tests of test_safety and test_requests
must fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actorgrid.actors.raft import snapshots
from actorgrid.actors.raft.codec import decode_conf_change, encode_conf_change
from actorgrid.actors.raft.configuration import Configuration
from actorgrid.actors.raft.core import RaftCore
from actorgrid.actors.raft.follower import Follower
from actorgrid.actors.raft.forwarding import Forwarding
from actorgrid.actors.raft.leadership import Leadership
from actorgrid.actors.raft.log import RaftLog
from actorgrid.actors.raft.messages import (
    NO_NODE,
    ConfState,
    Dropped,
    DroppedReason,
    HardState,
    Message,
    ProposalAccepted,
    RaftSnapshot,
    ReadState,
)
from actorgrid.actors.raft.quorum import EVERYTHING
from actorgrid.actors.raft.reads import Reads
from actorgrid.actors.raft.storage.memory import MemoryStorage

Mutant = Callable[[pytest.MonkeyPatch], None]


def replaced(owner: type, method: str, by: Callable[..., Any]) -> Mutant:
    return lambda patch: patch.setattr(owner, method, by)


def always(owner: type, method: str, value: object) -> Mutant:
    return replaced(owner, method, lambda *_, **__: value)


def votes_forgotten(self: RaftCore, stored: HardState) -> tuple[int, int]:
    return stored.term, NO_NODE


def everything_forgotten(self: RaftCore, stored: HardState) -> tuple[int, int]:
    return 0, NO_NODE


def sent_at_once(self: RaftCore, message: Message) -> None:
    self._messages.append(message)


def only_own_voters_vote(original: Callable[[RaftCore, Message], bool]) -> Callable[[RaftCore, Message], bool]:
    return lambda self, message: self.may_lead() and original(self, message)


def campaign_without_asking(self: RaftCore) -> None:
    self._begin_vote(force=False)


def everybody_counts(patch: pytest.MonkeyPatch) -> None:
    def reached(_self: Configuration, numbers: dict[int, int]) -> int:
        ordered = sorted(numbers.values())
        return ordered[(len(ordered) - 1) // 2]

    patch.setattr(Configuration, "reached", reached)
    patch.setattr(Leadership, "counted", lambda self: iter(self.progress.items()))


def any_number_of_changes(self: Leadership) -> str | None:
    return None if self.established else "nothing_committed_in_term"


def changes_at_once(self: Leadership) -> str | None:
    return None if self.pending_conf_index <= self._log.applied else "conf_change_pending"


def effective_when_received(original: Callable[[RaftCore, Message], None]) -> Callable[[RaftCore, Message], None]:
    def on_append(self: RaftCore, message: Message) -> None:
        original(self, message)
        for entry in message.entries:
            if entry.kind == "conf_change":
                request = decode_conf_change(entry.data)
                if isinstance(request, ConfState):
                    self._configuration = Configuration.of(request)
                else:
                    self._configuration = self._configuration.changed(*request)

    return on_append


def members_kept(self: RaftCore, snapshot: RaftSnapshot) -> Configuration:
    return self._configuration


def members_at_once(patch: pytest.MonkeyPatch) -> None:
    take = RaftCore._on_snapshot

    def on_snapshot(self: RaftCore, msg: Message) -> None:
        take(self, msg)
        if self._log.restoring is not None:
            self._configuration = self.members_of(self._log.restoring)

    patch.setattr(RaftCore, "_on_snapshot", on_snapshot)


def counted_at_once(patch: pytest.MonkeyPatch) -> None:
    original = Leadership.append

    def append(self: Leadership, kind: Any, data: bytes) -> int:
        index = original(self, kind, data)
        self.count()
        return index

    patch.setattr(Leadership, "append", append)
    patch.setattr(Leadership, "own_match", lambda self: self._log.last_index)


def vouched_by_index(self: RaftLog, index: int, term: int) -> bool:
    return 0 <= index - self._offset < len(self._unstable)


def applied_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = RaftLog.__init__

    def start(self: RaftLog, storage: Any, commit: int, applied: int) -> None:
        original(self, storage, commit, storage.first_index() - 1)

    patch.setattr(RaftLog, "__init__", start)


def only_answers_release_reads(self: RaftCore, leadership: Leadership) -> None:
    if self._configuration.auto_leave and leadership.conf_change_refusal() is None:
        leadership.append("conf_change", encode_conf_change((), "auto"))


def each_transfer_has_a_clock(patch: pytest.MonkeyPatch) -> None:
    original = Leadership.transfer

    def transfer(self: Leadership, to: int) -> DroppedReason | None:
        self.transferee = NO_NODE
        return original(self, to)

    patch.setattr(Leadership, "transfer", transfer)


def each_transfer_puts_the_quorum_off(patch: pytest.MonkeyPatch) -> None:
    original = RaftCore.transfer_leader

    def transfer_leader(self: RaftCore, to: int) -> ProposalAccepted | Dropped:
        self._elapsed = 0
        return original(self, to)

    patch.setattr(RaftCore, "transfer_leader", transfer_leader)


def committed_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftLog, "has_committed", property(lambda self: not self.restoring and self.applied < self.commit))
    patch.setattr(RaftLog, "committed", lambda self, most: self.entries(self.applied + 1, self.commit + 1, most))


MUTANTS: dict[str, Mutant] = {
    "the vote is forgotten at a restart": replaced(RaftCore, "remembered", votes_forgotten),
    "term and vote are forgotten at a restart": replaced(RaftCore, "remembered", everything_forgotten),
    "votes and acknowledgements leave before they are durable": replaced(RaftCore, "_send_persisted", sent_at_once),
    "a term kept by entries alone is forgotten": replaced(
        RaftCore, "remembered", lambda self, stored: (stored.term, stored.vote)
    ),
    "a change proven to be committed is not taken for it": always(RaftLog, "proven_commit", 0),
    "a second vote is given in a term": always(RaftCore, "has_vote_for", True),
    "a vote goes to any log": always(RaftLog, "up_to_date", True),
    "the leader counts itself before its entry is durable": replaced(
        Leadership, "own_match", lambda self: self._log.last_index
    ),
    "a proposal is counted before it is durable": counted_at_once,
    "members change before the leader commits in its term": replaced(
        Leadership, "conf_change_refusal", changes_at_once
    ),
    "two changes of members at a time": replaced(Leadership, "conf_change_refusal", any_number_of_changes),
    "a change of members takes effect when it is received": lambda patch: patch.setattr(
        RaftCore, "_on_append", effective_when_received(RaftCore._on_append)
    ),
    "a removed leader goes on": always(RaftCore, "may_lead", True),
    "a removed leader leaves at once": replaced(Leadership, "may_leave", lambda self: bool(self.removed_at)),
    "nobody learns from a refusal": always(RaftCore, "_learn_commit", None),
    "who is no voter is counted": everybody_counts,
    "an old term's entry is committed by counting": always(Leadership, "countable", True),
    "every append cuts the log": always(RaftLog, "first_news", 0),
    "the leader reads without a quorum": always(Leadership, "confirmed_sequence", EVERYTHING),
    "a read before the first commit of the term": always(Leadership, "may_read", True),
    "votes are considered while a leader is heard": always(RaftCore, "hears_leader", False),
    "no pre-vote": replaced(RaftCore, "_begin_pre_vote", campaign_without_asking),
    "no check of the quorum": always(Leadership, "has_quorum", True),
    "a snapshot's members are not taken": replaced(RaftCore, "members_of", members_kept),
    "a snapshot's members are taken before the changes that came first": members_at_once,
    "a snapshot behind the commit index is restored": always(Follower, "is_news", True),
    "an append behind the compaction is looked up": always(Follower, "is_late", False),
    "a lost chunk is not sent again": always(snapshots.OutgoingSnapshot, "tick", False),
    "members are forgotten at a restart": always(MemoryStorage, "set_conf_state", None),
    "a learner that does not know it is a voter does not vote": lambda patch: patch.setattr(
        RaftCore, "would_vote", only_own_voters_vote(RaftCore.would_vote)
    ),
    "a candidate with an unapplied change of members": always(RaftLog, "conf_change_unapplied", False),
    "what was applied is applied again": applied_is_forgotten,
    "what is not durable is applied": committed_is_enough,
    "the disk's late word counts for what replaced it": replaced(RaftLog, "is_unstable", vouched_by_index),
    "a follower that lost its log is refilled": always(Leadership, "lost_its_log", False),
    "any shorter answer is damage": replaced(
        Leadership, "lost_its_log", lambda self, progress, message: message.last_index < progress.match
    ),
    "only answers release reads": replaced(RaftCore, "_after_ready", only_answers_release_reads),
    "a transfer that is asked again begins anew": each_transfer_has_a_clock,
    "a transfer puts off the check of the quorum": each_transfer_puts_the_quorum_off,
    "a transfer that is asked again is not sent again": replaced(
        Leadership, "hand_over", lambda self: self._ticks and None
    ),
    "a read that is lost is waited for": always(Forwarding, "tick", None),
    "reads of the leader before are waited for": always(Forwarding, "leader_changed", None),
    "reads that end with the leadership are not told": always(Reads, "of", ()),
    "nobody is told what the leader refused": always(Forwarding, "refusal", None),
    "any node's answer to a read counts": replaced(
        Forwarding, "read_answered", lambda self, message: ReadState(message.index, message.context)
    ),
}

CAUGHT_BY: dict[str, tuple[str, ...]] = {
    "the vote is forgotten at a restart": ("test_a_vote_is_remembered_over_a_restart",),
    "term and vote are forgotten at a restart": ("test_a_term_is_remembered_over_a_restart",),
    "votes and acknowledgements leave before they are durable": (
        "test_votes_and_acknowledgements_wait_until_they_are_durable",
        "test_votes_are_not_asked_for_before_the_new_term_is_durable",
    ),
    "a term kept by entries alone is forgotten": (
        "test_a_term_that_only_its_entries_kept_is_not_campaigned_for_again",
    ),
    "a change proven to be committed is not taken for it": (
        "test_two_changes_of_members_in_a_log_prove_that_the_first_is_committed",
    ),
    "a second vote is given in a term": ("test_one_vote_is_given_in_a_term",),
    "a vote goes to any log": ("test_no_vote_goes_to_a_log_that_lacks_entries_held_here",),
    "the leader counts itself before its entry is durable": (
        "test_a_leader_counts_itself_only_when_its_entry_is_durable",
    ),
    "a proposal is counted before it is durable": ("test_a_lone_voter_commits_only_what_its_disk_has",),
    "members change before the leader commits in its term": (
        "test_members_are_not_changed_before_the_leader_commits_in_its_term",
    ),
    "two changes of members at a time": ("test_members_change_one_step_at_a_time",),
    "a change of members takes effect when it is received": (
        "test_a_change_of_members_that_is_never_committed_has_no_effect",
    ),
    "a removed leader goes on": ("test_a_removed_leader_steps_down_and_its_log_does_not_count",),
    "a removed leader leaves at once": ("test_a_removed_leader_stays_until_the_others_know",),
    "nobody learns from a refusal": ("test_a_voter_learns_from_a_refusal_that_it_alone_is_left",),
    "who is no voter is counted": ("test_who_is_no_voter_is_not_counted",),
    "an old term's entry is committed by counting": ("test_an_entry_of_an_old_term_is_not_committed_by_counting",),
    "every append cuts the log": ("test_a_late_append_takes_nothing_away",),
    "the leader reads without a quorum": ("test_a_leader_left_behind_serves_no_read",),
    "a read before the first commit of the term": (
        "test_a_new_leader_serves_no_read_before_it_has_committed_in_its_term",
    ),
    "votes are considered while a leader is heard": (
        "test_a_vote_against_a_leader_that_is_heard_is_not_even_considered",
    ),
    "no pre-vote": ("test_a_node_that_comes_back_does_not_depose_a_leader_that_is_heard",),
    "no check of the quorum": ("test_a_leader_without_a_quorum_steps_down",),
    "a snapshot's members are not taken": ("test_a_snapshot_brings_the_members_of_its_index",),
    "a snapshot's members are taken before the changes that came first": (
        "test_a_snapshot_that_comes_while_a_change_is_being_applied_leaves_that_change_alone",
    ),
    "a snapshot behind the commit index is restored": ("test_a_snapshot_behind_the_commit_index_is_not_restored",),
    "an append behind the compaction is looked up": (
        "test_an_append_behind_the_compaction_is_acknowledged_and_changes_nothing",
    ),
    "a lost chunk is not sent again": ("test_a_lost_chunk_of_a_snapshot_leaves_nobody_behind",),
    "members are forgotten at a restart": ("test_members_are_remembered_over_a_restart",),
    "a learner that does not know it is a voter does not vote": (
        "test_a_learner_promoted_in_a_log_it_has_not_seen_votes",
    ),
    "a candidate with an unapplied change of members": (
        "test_nobody_campaigns_with_a_committed_change_of_members_unapplied",
    ),
    "what was applied is applied again": ("test_what_was_applied_is_not_given_out_again",),
    "what is not durable is applied": ("test_nothing_is_applied_before_it_is_durable_here",),
    "the disk's late word counts for what replaced it": (
        "test_a_late_word_from_the_disk_does_not_vouch_for_entries_replaced_since",
    ),
    "a follower that lost its log is refilled": ("test_a_follower_that_lost_what_it_acknowledged_is_refused",),
    "only answers release reads": (
        "test_a_lone_voter_answers_what_was_asked_before_its_first_commit",
        "test_a_read_is_answered_when_the_quorum_that_is_left_needs_nobody",
    ),
    "a transfer that is asked again begins anew": (
        "test_a_transfer_that_is_asked_for_all_the_time_is_given_up_in_time",
    ),
    "a transfer puts off the check of the quorum": (
        "test_a_leader_that_is_cut_off_steps_down_whatever_transfers_are_asked",
    ),
    "a transfer that is asked again is not sent again": ("test_a_transfer_that_was_lost_is_sent_again",),
    "a read that is lost is waited for": ("test_a_read_that_is_lost_on_its_way_is_given_up",),
    "reads of the leader before are waited for": ("test_reads_that_the_leader_before_was_asked_are_given_up",),
    "reads that end with the leadership are not told": ("test_a_leader_that_steps_down_says_which_reads_it_drops",),
    "nobody is told what the leader refused": (
        "test_who_forwarded_a_proposal_hears_that_it_was_refused",
        "test_who_forwarded_a_read_hears_that_it_was_refused",
    ),
    "any node's answer to a read counts": ("test_only_the_leader_that_was_asked_answers_a_read",),
    "any shorter answer is damage": ("test_answers_that_arrive_late_are_no_damage",),
}
