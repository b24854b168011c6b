"""Deadlines and preemption among a task's options."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from actorgrid.client.call_words import JobWords, TaskWords
from actorgrid.client.options import OPTION_NAMES, TaskOptions, options_of
from actorgrid.errors import BadRequest
from actorgrid.models import LeaseRequest, TaskRequest


def job_request(**asked: object) -> dict[str, object]:
    return options_of(asked).job_request(kind="command", command=["x"])


def test_a_request_says_only_what_is_asked_for() -> None:
    assert set(job_request()) == {"task_id", "user_id", "kind", "command", "name"}
    asked = job_request(deadline=60, grace_s=0, preemptible=False, timeout=5, gang=2, memory="2GiB", gpu_models=("A",))
    said = {name: value for name, value in asked.items() if name not in job_request()}
    assert said == {
        "deadline_s": 60,
        "grace_s": 0,
        "preemptible": False,
        "max_execution_time_s": 5,
        "gang": 2,
        "memory_bytes": "2GiB",
        "gpu_models": ["A"],
    }
    at = datetime(2030, 1, 31, 18, tzinfo=UTC)
    request = TaskRequest.model_validate(job_request(deadline=at))
    assert (request.deadline, request.deadline_s) == (at, None)


def test_what_is_not_said_means_the_same_to_a_host_as_to_a_client() -> None:
    unsaid, default = TaskRequest.model_validate(job_request()), TaskOptions()
    for name in ("gpus", "cpus", "gpu_models", "gpu_affinity", "priority", "gang", "spread", "pool", "preemptible"):
        there = getattr(unsaid, name)
        assert (tuple(there) if isinstance(there, list) else there) == getattr(default, name), name
    assert (unsaid.gpu_memory_bytes, unsaid.memory_bytes) == (default.gpu_memory, default.memory)
    assert (unsaid.retries, unsaid.max_execution_time_s, unsaid.env) == (0, default.timeout, default.env or {})


def test_a_lease_is_asked_for_in_the_same_words_as_a_job() -> None:
    options = options_of({"gpus": 0.5, "gpu_memory": "2GiB", "env": {"A": "b"}})
    asked = options.shape.lease_request("3.13", 1.0, "0" * 16)
    assert LeaseRequest.model_validate(asked).gpu_memory_bytes == 2 * 2**30
    job = options.job_request()
    assert all(asked[name] == job[name] for name in ("gpus", "gpu_memory_bytes", "env"))


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


def test_type_checkers_know_every_option_by_name_and_type() -> None:
    fields = TaskOptions.__dataclass_fields__
    assert set(TaskWords.__annotations__) == set(OPTION_NAMES) == {*JobWords.__annotations__, "durable"} - {"kwargs"}
    assert {name: words.__forward_arg__ for name, words in TaskWords.__annotations__.items()} == {
        name: fields[name].type for name in OPTION_NAMES
    }
