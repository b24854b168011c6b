"""What a member of a gang is told of itself and of the others."""

from __future__ import annotations

from typing import Any

from actorgrid.actors.work.gang_environment import launcher_variables, rank_variables
from actorgrid.actors.work.live_attempt import ids_of, is_over, reason_to_end
from actorgrid.actors.work.outcomes import outcome_of, outcome_of_not_begun


def attempt(*hosts: str, address: str = "10.0.0.1", **more: Any) -> dict[str, Any]:
    members = [
        {"rank": rank, "host": host, "address": f"10.0.0.{host[1:]}", "allocation_id": f"j.2-{rank}", "ended_at": None}
        for rank, host in enumerate(hosts)
    ]
    base = {"number": 2, "attempt_id": "j.2", "members": members, "ended_at": None, "ending": None, "preemption": None}
    return {**base, "rendezvous": {"address": address, "port": 29_501}, **more}


def test_ranks_are_counted_over_all_and_on_each_host() -> None:
    mine = rank_variables(attempt("h1", "h1", "h2", "h2"), 3)
    assert (mine["RANK"], mine["WORLD_SIZE"], mine["NODE_RANK"], mine["NNODES"]) == ("3", "4", "3", "4")
    assert (mine["LOCAL_RANK"], mine["LOCAL_WORLD_SIZE"]) == ("0", "1"), "it sees its own devices only"
    assert (mine["ACTORGRID_LOCAL_RANK"], mine["ACTORGRID_LOCAL_SIZE"]) == ("1", "2")
    assert (mine["ACTORGRID_HOST_RANK"], mine["ACTORGRID_HOST_COUNT"]) == ("1", "2")
    assert (mine["MASTER_ADDR"], mine["MASTER_PORT"]) == ("10.0.0.1", "29501")
    assert mine["ACTORGRID_HOSTS"] == "10.0.0.1 slots=2\n10.0.0.2 slots=2"
    assert mine["ACTORGRID_ATTEMPT_NUMBER"] == "2"


def test_torchrun_is_told_what_it_would_be_given_by_hand() -> None:
    mine = launcher_variables(attempt("h1", "h2", address="fd00::1"), 1, 4)
    assert (mine["PET_NNODES"], mine["PET_NODE_RANK"], mine["PET_NPROC_PER_NODE"]) == ("2", "1", "4")
    assert mine["PET_RDZV_ENDPOINT"] == "[fd00::1]:29501"
    assert launcher_variables(attempt("h1", "h2"), 0, 0)["PET_NPROC_PER_NODE"] == "1", "a member without GPUs is one"


def test_a_host_sees_which_members_are_over_and_why_the_rest_is_to_end() -> None:
    live = attempt("h1", "h2")
    assert ids_of(live) == ["j.2-0", "j.2-1"]
    assert reason_to_end({"attempts": [live]}) == ""
    ended = attempt("h1", "h2", ending={"rank": 0, "at": 1.0})
    ended["members"][0]["ended_at"] = 1.0
    job = {"attempts": [ended]}
    assert (reason_to_end(job), is_over(job, "j.2-0"), is_over(job, "j.2-1")) == ("gang", True, False)
    asked = attempt("h1", "h2", preemption={"grace_s": 1.0}, ending={"rank": 0, "at": 1.0})
    assert reason_to_end({"attempts": [asked]}) == "preempted"
    assert reason_to_end({"attempts": [{**ended, "ended_at": 2.0}]}) == ""
    assert reason_to_end({"attempts": []}) == ""


def test_a_member_that_was_ended_along_costs_no_retry() -> None:
    spec = {"id": "j.2-1", "kind": "command", "job_id": "j", "timeout_s": None}
    told = outcome_of(spec, {"reason": "gang", "exit_code": 0}, b"", None)
    assert (told["outcome"], told["charge"]) == ("cancelled", False)
    assert "another member" in told["error"]["message"]
    assert outcome_of_not_begun("j.2-1", "gang")["outcome"] == "cancelled"
    assert outcome_of_not_begun("j.2", "preempted") == {"outcome": "preempted", "charge": False, "error": None}
