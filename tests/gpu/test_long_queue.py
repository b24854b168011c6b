"""What one more job costs the scheduler is the same beside ten that wait and beside thousands."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.gpu.core import CoordinatorCore
from actorgrid.actors.ledger.records import new_job
from actorgrid.actors.ledger.tables import job_table
from actorgrid.actors.ledger.tables.job_table import JobTable
from actorgrid.actors.scheduling.dispatch import Dispatch
from tests.consensus.rig import AT, host_record, job_record

LENGTHS = (10, 3_000)
ADDED = 20


def queued(number: int) -> dict[str, Any]:
    return new_job({**job_record(f"j{number}"), "submitted_at": AT + number}, number + 1, number + 1, AT)


@pytest.mark.parametrize("length", LENGTHS)
def test_one_more_looks_at_no_other_that_waits(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = JobTable((job["job_id"], job) for job in map(queued, range(length)))
    hosts = {"h1": {**host_record(gpus=1), "state": "up"}}
    core = CoordinatorCore("h1", 1, "fgd", 100_000, lambda: 0)
    core.load(jobs, {}, hosts, AT)
    assert len(core.schedule(AT, 100)) == 2, "two halves of the GPU"
    looks = {"records": 0, "tries": 0}
    unpack, tried = job_table.unpack, Dispatch._try

    def counted(data: bytes) -> Any:
        looks["records"] += 1
        return unpack(data)

    def try_counted(dispatch: Dispatch, *arguments: Any) -> bool:
        looks["tries"] += 1
        return tried(dispatch, *arguments)

    monkeypatch.setattr(job_table, "unpack", counted)
    monkeypatch.setattr(Dispatch, "_try", try_counted)
    for number in range(length, length + ADDED):
        job = queued(number)
        jobs[job["job_id"]] = job
        core.changed([("job", job["job_id"], job)], AT)
        assert core.schedule(AT, 100) == []
    assert looks["records"] == 0, "the news holds the record"
    assert looks["tries"] <= ADDED
    assert len(core.mirror.scheduler.waiting) == length - 2 + ADDED
