"""A list of jobs by labels, name, user, host and time: the same of jobs in memory and of those in the history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.ledger.command import read_command, refuse_if_too_new
from actorgrid.actors.ledger.commands import SubmitJobs
from actorgrid.actors.ledger.job_filter import JobFilter
from actorgrid.actors.ledger.records import new_job
from actorgrid.actors.raft.storage import store as store_module
from actorgrid.actors.raft.storage.store import Store
from actorgrid.errors import BadRequest, HostsTooOld
from actorgrid.labels import LABELS_MAX, is_labels, labels_of
from tests.consensus.rig import AT, job_record

VISION, NLP = {"team": "vision", "stage": "train"}, {"team": "nlp"}


def ended(number: int, **more: Any) -> dict[str, Any]:
    facts = job_record(f"job{number:02}", user_id="ann", name="train", submitted_at=AT + number, **more)
    attempts = [{"number": 1, "host": "h1", "members": [{"host": "h1"}, {"host": "h2"}]}] if number % 2 else []
    return {
        **new_job(facts, number, number, AT),
        "state": "failed" if number % 3 else "succeeded",
        "attempts": attempts,
    }


JOBS = [ended(number, **({"labels": VISION} if number % 2 else {"labels": NLP})) for number in range(10)]
JOBS += [{**ended(10), "user_id": "bob", "name": 'it\'s "odd" ä'}]


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (JobFilter(), 11),
        (JobFilter(labels={"team": "vision"}), 5),
        (JobFilter(labels={**VISION}), 5),
        (JobFilter(labels={"team": "vision", "stage": "eval"}), 0),
        (JobFilter(labels={"team": "nlp"}, states=("failed",)), 3),
        (JobFilter(name="rai"), 10),
        (JobFilter(name='"odd" ä'), 1),
        (JobFilter(name="%"), 0),
        (JobFilter(user="bob"), 1),
        (JobFilter(host="h2"), 5),
        (JobFilter(host="h3"), 0),
        (JobFilter(since_at=AT + 8), 3),
        (JobFilter(since_at=AT + 3, before_at=AT + 5, labels={"team": "vision"}), 1),
    ],
)
def test_the_history_and_the_memory_choose_alike(tmp_path: Path, wanted: JobFilter, count: int) -> None:
    store = Store(tmp_path / "state.db")
    store.write(1, list(enumerate(JOBS, 1)), [])
    chosen = [job for job in reversed(JOBS) if wanted.passes(job)]
    assert len(chosen) == count
    found, last_seen = store.jobs(wanted, 100)
    assert [job["job_id"] for job in found] == [job["job_id"] for job in chosen] and last_seen is None
    store.close()


def test_a_question_reads_through_a_part_and_says_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LOOKED_AT_MAX", 4)
    store = Store(tmp_path / "state.db")
    store.write(1, list(enumerate(JOBS, 1)), [])
    pages, before = [], None
    while True:
        found, last_seen = store.jobs(JobFilter(labels={"team": "nlp"}, before_ordinal=before), 100)
        pages.append([job["ordinal"] for job in found])
        if last_seen is None:
            break
        before = last_seen[0]
    assert pages == [[8], [6, 4], [2, 0]]
    store.close()


@pytest.mark.parametrize("wrong", [{"a b": "c"}, {"": "x"}, {"a": "-"}, {"a": "x" * 64}, {"a": 1}, {"a=b": "c"}, ["a"]])
def test_what_is_no_label_is_refused(wrong: Any) -> None:
    assert not is_labels(wrong)
    with pytest.raises(BadRequest, match="labels"):
        read_command(SubmitJobs([job_record("a", labels=wrong)], at=AT).to_plain())
    if isinstance(wrong, dict):
        with pytest.raises(ValueError, match="is not a label"):
            labels_of(f"{key}={value}" for key, value in wrong.items() if isinstance(value, str) or labels_of(["!"]))


def test_labels_are_read_as_people_write_them() -> None:
    assert labels_of(["team=vision", "k8s.io/app=a_b-c", "empty="]) == {
        "team": "vision",
        "k8s.io/app": "a_b-c",
        "empty": "",
    }
    with pytest.raises(ValueError, match="at most 16"):
        labels_of(f"l{number}=" for number in range(LABELS_MAX + 1))


def test_a_job_with_labels_is_not_proposed_before_all_hosts_know_them() -> None:
    with pytest.raises(HostsTooOld):
        refuse_if_too_new(SubmitJobs([job_record("a", labels=VISION)], at=AT), {"h1": {"ledger_version": 8}})
