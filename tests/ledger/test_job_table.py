"""The table of jobs: what comes out is what went in, and a queue costs little to keep and to tell."""

from __future__ import annotations

import gc
import pickle
import random
import tracemalloc
import uuid
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.ledger.job_filter import JobFilter
from actorgrid.actors.ledger.records import new_job
from actorgrid.actors.ledger.snapshot import pack
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.job_table import SORTS_MAX, JobTable
from tests.consensus.rig import AT, job_record

QUEUE = 5_000

texts = st.text(max_size=4) | st.sampled_from(["a", "\ud800"])
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
records = st.fixed_dictionaries(
    {
        "state": st.sampled_from(["queued", "queued", "running", "succeeded"]),
        "attempts": st.sampled_from([[], [{"n": 1}]]),
    },
    optional={
        "env": st.dictionaries(texts, texts, max_size=2),
        "command": st.lists(texts, max_size=2),
        "deadline": plain,
        "ordinal": plain,
        "priority": plain,
        "retries_left": plain,
        "something_new": plain | st.lists(plain, max_size=2),
    },
)
ids = st.sampled_from(["a", "b", "c", "d"])


def queued(number: int, **more: Any) -> dict[str, Any]:
    given_ = job_record(uuid.UUID(int=random.Random(number).getrandbits(128)).hex, **more)
    return new_job({**given_, "submitted_at": AT + number / 7}, number, number, AT)


def table_of(count: int, **more: Any) -> JobTable:
    return JobTable((job["job_id"], job) for job in (queued(number, **more) for number in range(count)))


def exactly(value: Any) -> Any:
    """As snapshots and digests see it: 1, 1.0 and True differ, and so does the order of fields."""
    return pack(value)


@given(st.lists(st.tuples(ids, st.none() | records), max_size=30))
def test_it_holds_what_a_dict_would_to_the_order_of_fields(steps: list[tuple[str, dict[str, Any] | None]]) -> None:
    table, plain_dict = JobTable(), {}
    for job_id, record in steps:
        if record is None:
            assert (table.pop(job_id, None) is None) == (plain_dict.pop(job_id, None) is None)
        else:
            table[job_id] = plain_dict[job_id] = {"job_id": job_id, **record}
    for again in (table, pickle.loads(pickle.dumps(table)), table.copy(lambda _: True)):
        assert exactly(list(again.items())) == exactly(list(plain_dict.items()))
        assert exactly(list(again.newest(JobFilter()))) == exactly(list(plain_dict.values())[::-1])
        for job_id in list(again):
            del again[job_id]
        assert not again._sorts and not again._environments, "what nobody has in common any more is not kept"


def test_the_next_page_goes_on_behind_the_last_job_of_the_one_before() -> None:
    table = table_of(10)
    names = list(table)[::-1]
    assert [job["job_id"] for job in table.newest(JobFilter(), names[3])] == names[4:]
    assert [job["job_id"] for job in table.newest(JobFilter(), "unknown")] == names
    assert list(table.newest(JobFilter(("running",)))) == []


labelled = st.dictionaries(st.sampled_from(["team", "stage"]), st.sampled_from(["vision", "nlp", ""]), max_size=2)
made = st.fixed_dictionaries(
    {"user_id": st.sampled_from(["ann", "bob"]), "name": st.sampled_from(["train", "train-ä", "team"])},
    optional={"labels": labelled},
)


@given(
    st.lists(made, max_size=12),
    labelled,
    st.sampled_from(["", "train", "ä", "am"]),
    st.sampled_from(["", "ann", "nobody"]),
)
def test_what_is_passed_by_unread_is_what_nobody_looks_for(
    given_: list[dict[str, Any]], labels: dict[str, str], name: str, user: str
) -> None:
    table = JobTable((job["job_id"], job) for job in (queued(number, **more) for number, more in enumerate(given_)))
    wanted = JobFilter(name=name, user=user, labels=labels)
    chosen = [
        job
        for job in list(table.values())[::-1]
        if name in job["name"]
        and (not user or job["user_id"] == user)
        and labels.items() <= job.get("labels", {}).items()
    ]
    assert list(table.newest(wanted)) == chosen


def test_a_copy_is_another_table() -> None:
    table = table_of(3)
    mine = table.copy(lambda _: False)
    name = next(iter(table))
    del table[name]
    assert len(mine) == 3 and mine[name]["state"] == "queued"
    assert len(table.copy(lambda _: True, waiting=False)) == 0


def test_what_was_read_at_once_is_of_that_moment() -> None:
    table = table_of(3)
    before = [dict(job) for job in table.values()]
    taken = table.at_once()
    table.clear()
    assert list(taken) == before


def test_a_waiting_job_costs_few_bytes_to_keep_and_to_tell() -> None:
    long = {f"VARIABLE_{number}": "x" * 60 for number in range(50)}
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    table = table_of(QUEUE, env=long, depends_on=[])
    gc.collect()
    each = (tracemalloc.get_traced_memory()[0] - before) / QUEUE
    tracemalloc.stop()
    assert each < 500, f"{each:.0f} bytes a job"
    told = len(pickle.dumps(table, pickle.HIGHEST_PROTOCOL)) / QUEUE
    assert told < 150, f"{told:.0f} bytes a job"


def test_a_ledger_with_a_queue_keeps_each_job_in_less_than_a_kilobyte_with_its_digest() -> None:
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    ledger = Ledger()
    for first in range(0, QUEUE, 500):
        jobs = [job_record(f"{first + n:032x}", env={"INDEX": str(first + n)}) for n in range(500)]
        command = {"type": "submit_jobs", "v": 1, "at": AT, "jobs": jobs}
        assert ledger.apply(ledger.index + 1, command).error is None
    ledger.digest()
    gc.collect()
    each = (tracemalloc.get_traced_memory()[0] - before) / QUEUE
    tracemalloc.stop()
    assert each < 1_000, f"{each:.0f} bytes a job"
    again = Ledger.restore(ledger.snapshot())
    assert (again.snapshot(), again.digest()) == (ledger.snapshot(), ledger.digest())


def test_sorts_without_end_are_packed_one_by_one() -> None:
    table = JobTable()
    jobs = [queued(number, priority=number) for number in range(SORTS_MAX + 100)]
    for job in jobs:
        table[job["job_id"]] = job
    assert len(table._sorts) == SORTS_MAX
    assert exactly(list(table.values())) == exactly(jobs)
    assert all(table.waits(job["job_id"]) for job in jobs) and not table.waits("unknown")
    names = [job["job_id"] for job in jobs]
    assert [fields for _, fields in table.own_fields(("ordinal",), lambda _: True)] == [[n] for n in range(len(jobs))][
        ::-1
    ]
    for name in names:
        del table[name]
    assert not table._sorts


def test_what_each_job_is_annotated_with_makes_it_no_sort_of_its_own() -> None:
    jobs = {job["job_id"]: job for job in (queued(number, annotations={"n": str(number)}) for number in range(100))}
    table = JobTable(jobs)
    assert len(table._sorts) == 1
    assert exactly(dict(table)) == exactly(jobs)
