"""Checkpoints in the ledger: the job has the last one of the attempt that is its own, and of no other."""

from __future__ import annotations

import pytest

from actorgrid.actors.ledger.command import refuse_if_too_new
from actorgrid.actors.ledger.commands import (
    CheckpointAttempt,
    EndAttempt,
    GrantGang,
    RetryJob,
    StartAttempt,
    SubmitJobs,
)
from actorgrid.actors.ledger.record_checks import JOB_FILES
from actorgrid.actors.ledger.state import Ledger
from actorgrid.checkpoints import HEAD_BYTES, head_of, is_wish, parse_head
from actorgrid.errors import BadRequest, HostsTooOld, StaleToken, WrongState
from tests.consensus.rig import AT, host_record, job_record
from tests.ledger.test_quotas import Book

ONE, TWO, THREE = ("ab" * 32, "cd" * 32, "ef" * 32)


def enter(book: Book, attempt_id: str, token: list[int], digest: str, number: int) -> bool:
    return bool(book.do(CheckpointAttempt(attempt_id, token, digest, number, 100, at=AT))["already"])


def test_the_last_one_of_the_attempt_that_counts_is_the_jobs() -> None:
    book = Book()
    book.do(SubmitJobs([job_record("a", retries_left=3, checkpoint={"path": "ckpt", "every_s": 60})], at=AT))
    first = book.grant("a")
    book.do(StartAttempt("a.1", first, at=AT))
    assert not enter(book, "a.1", first, ONE, 1)
    assert not enter(book, "a.1", first, TWO, 2)
    # Told twice, or late, it changes nothing.
    assert enter(book, "a.1", first, TWO, 2)
    assert enter(book, "a.1", first, ONE, 1)
    job = book.ledger.jobs["a"]
    assert job["checkpoint_digest"] == TWO and "checkpoint_digest" in JOB_FILES
    assert job["last_checkpoint"] == {"attempt": 1, "number": 2, "size_bytes": 100, "at": AT}
    # Its host is lost: what comes from there later is refused, also under the right token of that attempt.
    book.do(EndAttempt("a.1", first, "lost", charge=False, at=AT))
    with pytest.raises(StaleToken, match=r"a\.1 is over"):
        enter(book, "a.1", first, THREE, 3)
    second = book.grant("a", number=2)
    with pytest.raises(StaleToken, match=r"a\.1 is over"):
        enter(book, "a.1", first, THREE, 3)
    with pytest.raises(StaleToken, match="token"):
        enter(book, "a.2", first, THREE, 3)
    assert book.ledger.jobs["a"]["checkpoint_digest"] == TWO
    # The next one counts from 1 again.
    assert not enter(book, "a.2", second, THREE, 1)
    book.do(EndAttempt("a.2", second, "failed", charge=False, at=AT))
    restored = Ledger.restore(book.ledger.snapshot())
    assert restored.digest() == book.ledger.digest()
    assert restored.jobs["a"]["last_checkpoint"] == {"attempt": 2, "number": 1, "size_bytes": 100, "at": AT}


def test_a_job_that_is_begun_again_has_its_checkpoint_still() -> None:
    book = Book()
    book.submit("a")
    token = book.grant("a")
    enter(book, "a.1", token, ONE, 1)
    book.do(EndAttempt("a.1", token, "failed", at=AT))
    with pytest.raises(StaleToken):
        enter(book, "a.1", token, TWO, 2)
    book.do(RetryJob("a", at=AT))
    assert book.ledger.jobs["a"]["checkpoint_digest"] == ONE


def test_of_a_gang_rank_0_enters_them() -> None:
    book = Book()
    host = host_record("h1", gpus=4, cpu_milli=100_000)
    places = [{"host": host["host_id"], "incarnation": 1, "gpu_indexes": [gpu]} for gpu in (0, 1)]
    resources = {"gang": 2, "cpu_milli": 100, "gpu_milli": 100}
    book.do(SubmitJobs([job_record("g", resources=resources)], at=AT))
    token = book.do(GrantGang("g", 1, places, (9000, 9100), 1, at=AT))["token"]
    assert not enter(book, "g.1-0", token, ONE, 1)
    with pytest.raises(WrongState, match="not rank 0"):
        enter(book, "g.1-1", token, TWO, 1)
    assert book.ledger.jobs["g"]["checkpoint_digest"] == ONE


def test_hosts_of_before_are_not_told() -> None:
    old = {"h1": {"ledger_version": 9}, "h2": {"ledger_version": 8}}
    for command in (
        CheckpointAttempt("a.1", [1, 5], ONE, 1, 1, at=AT),
        SubmitJobs([job_record("a", checkpoint={})], at=AT),
    ):
        with pytest.raises(HostsTooOld):
            refuse_if_too_new(command, old)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="digest"):
        Book().do(CheckpointAttempt("a.1", [1, 5], "../../etc/passwd", 1, 1, at=AT))


@pytest.mark.parametrize(
    "wish",
    [
        {"path": "../up"},
        {"path": "/abs"},
        {"path": "a/../b"},
        {"path": "./a"},
        {"path": 3},
        {"every_s": 5.0},
        {"path": "a", "every_s": 0},
        {"path": "a", "every_s": True},
        {"path": "a", "every_s": float("nan")},
        {"path": "a", "more": 1},
        [],
        "a",
    ],
)
def test_what_is_no_wish(wish: object) -> None:
    assert not is_wish(wish)


def test_the_head_of_a_file_says_whose_it_is() -> None:
    assert is_wish({}) and is_wish({"path": "a/b", "every_s": 60})
    head = head_of("a" * 64 + ".12-3", 7)
    assert len(head) == HEAD_BYTES and parse_head(head) == ("a" * 64 + ".12-3", 7)
    for other in (b"", head[:-1], head[1:] + b" ", b"PK" + head[2:], head.replace(b" 7 ", b" x ")):
        assert parse_head(other) is None
