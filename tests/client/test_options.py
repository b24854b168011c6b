"""Deadlines and preemption among a task's options."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from actorgrid.client.options import options_of
from actorgrid.errors import BadRequest
from actorgrid.models import TaskRequest


def test_a_deadline_and_a_grace_become_fields_of_a_job_request() -> None:
    assert options_of({"gpus": 1}).job_terms() == {}
    terms = options_of({"deadline": 60, "grace_s": 0, "preemptible": False}).job_terms()
    assert terms == {"deadline_s": 60, "grace_s": 0, "preemptible": False}
    at = datetime(2030, 1, 31, 18, tzinfo=UTC)
    request = TaskRequest(command=["x"], **options_of({"deadline": at}).job_terms())
    assert (request.deadline, request.deadline_s) == (at, None)


@pytest.mark.parametrize("wrong", [{"deadline": 0}, {"deadline": datetime(2030, 1, 1)}, {"grace_s": -1}])
def test_times_that_are_none_are_refused_at_once(wrong: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        options_of(wrong)


@pytest.mark.parametrize(
    ("wrong", "instead"),
    [({"gpus": 1, "gpu_memory": 10}, "'10GiB'"), ({"memory": "64"}, "64GiB"), ({"memory": 1.5}, "'1.5GiB'")],
)
def test_an_amount_of_memory_without_a_unit_is_refused_with_what_was_meant(
    wrong: dict[str, object], instead: str
) -> None:
    with pytest.raises(BadRequest, match=instead):
        options_of(wrong)
    assert options_of({"memory": 64 * 2**20}).memory == 64 * 2**20 and options_of({"memory": "0"}).memory == "0"
