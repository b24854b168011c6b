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
