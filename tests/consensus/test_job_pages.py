"""Lists of jobs come in pages: each job on one of them, and a page costs what it holds, not what waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.ledger.commands import CancelJob, SubmitJobs
from actorgrid.actors.ledger.tables import job_table, jobs
from actorgrid.errors import UnknownJob
from tests.consensus.rig import AT, Host, job_record

COUNT = 60


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(jobs, "ENDED_MAX", 10)
    host = Host(tmp_path)
    host.start()
    host.propose(SubmitJobs([job_record(f"j{number:02}") for number in range(COUNT)], at=AT))
    for number in range(0, COUNT, 2):
        host.propose(CancelJob(f"j{number:02}", "me", at=AT))  # 20 of them leave memory
    return host


def pages(host: Host, limit: int, **args: Any) -> list[list[str]]:
    found, before = [], None
    while not found or before is not None:
        page = host.query("jobs", limit=limit, before=before, **args)
        found.append([job["job_id"] for job in page["jobs"]])
        before = page["next"]
    return found


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((), [f"j{number:02}" for number in reversed(range(COUNT))]),
        (("queued",), [f"j{number:02}" for number in reversed(range(1, COUNT, 2))]),
        (("cancelled",), [f"j{number:02}" for number in reversed(range(0, COUNT, 2))]),
        (("running",), []),
    ],
)
@pytest.mark.parametrize("limit", [7, 10, COUNT])
def test_each_job_is_on_one_page(host: Host, states: tuple[str, ...], expected: list[str], limit: int) -> None:
    found = pages(host, limit, states=states)
    assert [name for page in found for name in page] == expected
    assert all(len(page) == limit for page in found[:-1])


def test_a_beginning_of_an_id_finds_all_that_begin_so(host: Host) -> None:
    found = host.query("jobs", prefix="j0", limit=4)
    assert [job["job_id"] for job in found["jobs"]] == ["j09", "j08", "j07", "j06"]
    assert (found["total"], found["next"]) == (10, "j06")
    assert host.query("jobs", prefix="x") == {"jobs": [], "total": 0, "next": None}


def test_a_page_after_a_job_that_nobody_knows_is_refused(host: Host) -> None:
    with pytest.raises(UnknownJob):
        host.query("jobs", before="nobody")


def test_a_page_unpacks_no_more_jobs_than_it_holds(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.propose(SubmitJobs([job_record(f"q{number:04}") for number in range(2_000)], at=AT))
    unpacked: list[int] = []
    unpack = job_table.unpack

    def counted(data: bytes) -> Any:
        unpacked.append(1)
        return unpack(data)

    monkeypatch.setattr(job_table, "unpack", counted)

    for before in (None, "q1990", "q0100"):
        unpacked.clear()
        assert len(host.query("jobs", states=["queued"], limit=10, before=before)["jobs"]) == 10
        assert len(unpacked) <= 2 * 12, "two values for each job: its own, and its environment"
    unpacked.clear()
    host.query("jobs", states=["running", "placed"], limit=10)
    assert not unpacked
