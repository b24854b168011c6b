"""Waiting jobs are held to a bound in bytes that the command carries: every ledger counts and decides alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.ledger.command import read_command
from actorgrid.actors.ledger.commands import LIMITS_SINCE, CancelJob, SubmitJobs
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.waiting_bytes import JOB_BYTES, job_bytes
from actorgrid.errors import BadRequest, QueueFull
from tests.consensus.rig import AT, job_record
from tests.ledger.test_quotas import Book


def submission(*jobs: dict[str, Any], user: int = 10**9, all_: int = 10**9) -> SubmitJobs:
    return SubmitJobs(list(jobs), {"user": user, "all": all_}, at=AT)


def job(job_id: str, size: int, user: str = "ann") -> dict[str, Any]:
    """A job that counts with *size* bytes."""
    bare = job_record(job_id, user_id=user, env={"E": ""})
    return {**bare, "env": {"E": "x" * (size - job_bytes(bare))}}


def test_a_user_and_all_users_are_held_to_their_bounds() -> None:
    book = Book()
    limits = {"user": 10_000, "all_": 15_000}
    book.do(submission(job("a1", 6_000), job("a2", 4_000), **limits))
    with pytest.raises(QueueFull) as refused:
        book.do(submission(job("a3", 2_000), **limits))
    assert (refused.value.asked, refused.value.found) == (
        "2000 bytes more, in 1 job",
        "10000 waiting of 10000 bytes",
    )
    assert "scheduling.user_waiting_bytes_max" in refused.value.hint
    book.do(submission(job("b1", 5_000, "bob"), **limits))
    with pytest.raises(QueueFull, match="all users"):
        book.do(submission(job("b2", 2_000, "bob"), **limits))
    assert book.ledger.waiting_bytes == 15_000
    book.do(CancelJob("a1", "me", at=AT))
    assert book.ledger.waiting_bytes == 9_000
    book.do(submission(job("b2", 2_000, "bob"), **limits))


def test_a_batch_is_refused_whole_and_one_accepted_before_counts_once() -> None:
    book = Book()
    with pytest.raises(QueueFull):
        book.do(submission(job("a1", 4_000), job("a2", 4_000), user=7_000))
    assert (book.ledger.waiting_bytes, len(book.ledger.jobs)) == (0, 0)
    for _ in range(3):
        book.do(submission(job("a1", 4_000), user=7_000))
    assert book.ledger.waiting_bytes == 4_000


def test_a_log_of_old_is_replayed_as_it_was() -> None:
    book = Book()
    book.do(SubmitJobs([job("a1", 60_000)], at=AT))  # without limits: none are held to
    assert book.ledger.waiting_bytes == 60_000


def test_texts_count_with_their_bytes_and_a_job_with_a_part_of_its_own() -> None:
    assert job_bytes({"user_id": "a"}) == JOB_BYTES
    assert job_bytes({"command": ["ä", "bc"], "env": {"k": "v\ud800"}, "name": "n", "cwd": None}) == JOB_BYTES + 10


@pytest.mark.parametrize("wrong", [{}, {"user": 1}, {"user": 1, "all": -1}, {"user": 1, "all": "2"}, 5, [1, 2]])
def test_limits_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(BadRequest, match="waiting_bytes"):
        read_command({**SubmitJobs([], at=AT).to_plain(), "v": LIMITS_SINCE, "waiting_bytes": wrong})


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1_200, 3_000), st.booleans()), max_size=20))
def test_what_is_counted_is_what_waits_also_after_a_snapshot(steps: list[tuple[str, int, bool]]) -> None:
    book = Book()
    for number, (user, size, cancel) in enumerate(steps):
        book.do(submission(job(f"j{number}", size, user)))
        if cancel:
            book.do(CancelJob(f"j{number // 2}", "me", at=AT))
    waiting = [each for each in book.ledger.jobs.values() if each["state"] == "queued"]
    restored = Ledger.restore(b"".join(book.ledger.snapshot_pieces()))
    for ledger in (book.ledger, restored):
        assert ledger.waiting_bytes == sum(map(job_bytes, waiting))
        assert ledger._jobs.waiting_bytes.of.keys() == {each["user_id"] for each in waiting}


def test_annotations_count_and_what_an_older_entry_calls_so_harms_nobody() -> None:
    bare = job_bytes(job_record("a"))
    assert job_bytes(job_record("a", annotations={"key": "välue"})) == bare + 9
    for anything in ("text", [1], None, {"a": 1, "b": [2]}):
        assert job_bytes(job_record("a", annotations=anything)) <= bare + 2
