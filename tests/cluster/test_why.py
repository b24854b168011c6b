"""Why a job is where it is: from what the engine, the ledger and the scheduler say, in sentences and in fields."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.cluster.explain.contention import (
    fits,
    fits_at,
    freeing,
    holders,
    options,
    other_kinds,
    reduced,
)
from actorgrid.actors.cluster.explain.phrases import listed, nearest_has, needs
from actorgrid.actors.cluster.explain.why import JobContext, explain_job
from actorgrid.actors.scheduling.scheduler import Scheduler
from actorgrid.amounts import duration, mebibytes
from actorgrid.demand import APART, NEAR, Demand
from actorgrid.hotpath import PlacementEngine

NOW = 1000.0


def wants(gpus: int = 0, milli: int = 1000, **more: Any) -> dict[str, Any]:
    return {
        "gpus": gpus * milli / 1000,
        "gpu_count": gpus,
        "gpu_milli": milli if gpus else 0,
        "gpu_memory_mib": 0,
        "gpu_models": [],
        "gpu_affinity": [],
        "cpu_milli": 1000,
        "memory_mib": 0,
        **more,
    }


def job(**changes: Any) -> dict[str, Any]:
    record: dict[str, Any] = {
        "job_id": "j1",
        "name": "train",
        "state": "queued",
        "priority": 50,
        "policy": "priority",
        "submitted_at": NOW - 12,
        "not_before": 0.0,
        "cancel_requested": False,
        "depends_on": [],
        "attempts": [],
        "retries_left": 0,
        "max_execution_time_s": None,
        "ended_at": None,
        "error": None,
        "resources": wants(),
    }
    return {**record, **changes}


def attempt(**changes: Any) -> dict[str, Any]:
    base = {"number": 1, "host": "h1", "state": "running", "started_at": NOW - 10, "placed_at": NOW - 11}
    return {**base, "gpu_uuids": [], "gpu_indexes": [], "error": None, **changes}


def host(host_id: str = "h1", name: str = "alpha", gpus: int = 4, model: str = "A100", cpus: int = 8) -> dict[str, Any]:
    devices = [{"index": n, "uuid": f"{host_id}-{n}", "model": model, "memory_mib": 40_960} for n in range(gpus)]
    return {
        "host_id": host_id,
        "hostname": name,
        "state": "up",
        "cpu_milli": cpus * 1000,
        "memory_mib": 65_536,
        "devices": devices,
    }


def allocation(owner: str, indexes: list[int], milli: int = 1000, host_id: str = "h1", **more: Any) -> dict[str, Any]:
    base = {
        "host": host_id,
        "owner": {"job_id": owner},
        "gpu_indexes": indexes,
        "gpu_milli": milli,
        "gpu_memory_mib": 0,
        "cpu_milli": 1000,
        "memory_mib": 0,
        "granted_at": NOW - 60,
    }
    return {**base, **more}


def cluster(*hosts: dict[str, Any], held: tuple[dict[str, Any], ...] = ()) -> PlacementEngine:
    """The engine of these hosts with *held* given out."""
    engine = PlacementEngine("first_fit")
    for one in hosts:
        devices = [(device["model"], device["memory_mib"]) for device in one["devices"]]
        engine.add_node(one["host_id"], cpu_milli=one["cpu_milli"], memory_mib=one["memory_mib"], devices=devices)
    for number, one in enumerate(held):
        engine.adopt(
            number,
            ((one["host"], tuple(one["gpu_indexes"])),),
            cpu_milli=one["cpu_milli"],
            gpu_milli=one["gpu_milli"],
            gpu_memory_mib=one["gpu_memory_mib"],
        )
    return engine


def asked(engine: PlacementEngine, resources: dict[str, Any], position: int | None = 1, **more: Any) -> dict[str, Any]:
    """What the coordinator answers."""
    request = {"cpu_milli": resources["cpu_milli"], "memory_mib": resources["memory_mib"]}
    if resources["gpu_count"]:
        request |= {name: resources[name] for name in ("gpu_count", "gpu_milli", "gpu_memory_mib")}
        request["gpu_models"] = tuple(resources["gpu_models"])
    return {**engine.explain(**request), "position": position, **more}


def why(record: dict[str, Any], **context: Any) -> dict[str, Any]:
    return explain_job(record, JobContext(**{"now": NOW, "hosts": {"h1": host()}, **context}))


# -- a job that does not fit


def test_the_headline_says_what_it_needs_what_the_nearest_host_has_and_who_is_ahead() -> None:
    hosts = host("h1", "host-a", 2), host("h2", "host-b", 4)
    held = allocation("x", [0, 1], host_id="h1"), allocation("y", [0, 1], host_id="h2")
    resources = wants(4, gpu_models=["A100"])
    fit = asked(cluster(*hosts, held=held), resources, position=4)
    answer = why(job(resources=resources), fit=fit, hosts={one["host_id"]: one for one in hosts}, waiting=7)
    assert answer["headline"] == (
        "it needs 4 whole A100s on one host; the nearest, host-b, has 2 free; 3 jobs are ahead"
    )
    assert (answer["position"], answer["waiting"], answer["total_hosts"]) == (4, 7, 2)
    assert answer["constraints"] == [
        {"name": "gpu_busy", "text": "not enough of its GPUs free", "hosts": 1},
        {"name": "gpu_count", "text": "fewer GPUs than asked for", "hosts": 1},
    ]
    assert "it has been waiting for 12 s" in answer["reasons"]
    assert "submit it again with --priority above 50 to go before the others" in answer["next_steps"]


def test_one_host_is_called_by_its_name_alone() -> None:
    fit = asked(cluster(host(), held=(allocation("x", [0, 1, 2, 3]),)), wants(2))
    assert why(job(resources=wants(2)), fit=fit)["headline"] == (
        "it needs 2 whole GPUs on one host; alpha has none free"
    )


def test_a_share_is_told_what_share_is_free() -> None:
    engine = cluster(host(gpus=1), held=(allocation("x", [0], 800),))
    answer = why(job(resources=wants(1, 500)), fit=asked(engine, wants(1, 500)), hosts={"h1": host(gpus=1)})
    assert answer["headline"] == "it needs 0.5 of a GPU; alpha has 0.2 of one free"


def test_device_memory_that_is_missing_is_said_in_its_unit() -> None:
    resources = wants(1, 200, gpu_memory_mib=20_480)
    engine = cluster(host(gpus=1), held=(allocation("x", [0], 500, gpu_memory_mib=30_720),))
    answer = why(job(resources=resources), fit=asked(engine, resources), hosts={"h1": host(gpus=1)})
    assert answer["headline"] == "it needs 0.2 of a GPU with 20 GiB of GPU memory; alpha lacks 10 GiB of GPU memory"


def test_cpus_that_are_missing_are_said() -> None:
    resources = wants(cpu_milli=4000)
    engine = cluster(host(gpus=0, cpus=4), held=(allocation("x", [], cpu_milli=3000),))
    answer = why(job(resources=resources), fit=asked(engine, resources), hosts={"h1": host(gpus=0, cpus=4)})
    assert answer["headline"] == "it needs 4 CPUs; alpha lacks 3 CPUs"
    assert [one["text"] for one in answer["constraints"]] == ["not enough CPU free"]


def test_where_no_host_can_ever_serve_a_host_is_to_be_added() -> None:
    engine = cluster(host(gpus=2))
    engine.drain("h1")
    answer = why(job(resources=wants(4)), fit=asked(engine, wants(4)))
    assert answer["headline"].startswith(
        "it needs 4 whole GPUs on one host; the only host cannot take it as things are"
    )
    assert "actorgrid hosts shows which hosts take nothing new, and why" in answer["next_steps"]
    assert "add a host with 4 whole GPUs, or ask for less" in answer["next_steps"]
    none = why(job(resources=wants(4)), fit=asked(cluster(), wants(4)), hosts={})
    assert none["headline"] == "it needs 4 whole GPUs on one host; there is no host yet"


def test_a_constraint_nobody_named_yet_goes_by_its_own_name() -> None:
    fit = {"fits": False, "total_nodes": 3, "failed": {"rack_power": 2, "cpu": 0}, "nearest": None}
    assert [one["text"] for one in why(job(), fit=fit)["constraints"]] == ["rack power"]


def test_devices_that_take_nothing_new_are_named_with_the_reason() -> None:
    engine = cluster(host(), held=(allocation("x", [0, 1, 2, 3]),))
    unfit = [{"host": "h1", "gpu": 2, "why": "it is at 93 °C"}]
    answer = why(job(resources=wants(1)), fit=asked(engine, wants(1), unfit=unfit))
    assert answer["notes"] == ["GPU 2 of alpha takes nothing new: it is at 93 °C"]


# -- what would help


def test_smaller_requests_that_fit_are_steps() -> None:
    engine = cluster(host(), held=(allocation("x", [0, 1]),))
    fit = asked(engine, wants(4))
    answer = why(job(resources=wants(4)), fit=fit, openings=("--gpus 2", "--gpu-model H100"))
    assert answer["openings"] == ["--gpus 2", "--gpu-model H100"]
    assert answer["next_steps"][:2] == [
        "ask for less: with --gpus 2 it would fit now",
        "ask again: with --gpu-model H100 it would fit now",
    ]


def test_what_to_ask_for_instead_follows_what_is_missing() -> None:
    four = wants(4, cpu_milli=6000)
    held = allocation("x", [0, 1], cpu_milli=4000)
    cut = reduced(Demand.of(four), asked(cluster(host(), held=(held,)), four))
    assert cut is not None and options(Demand.of(four), cut) == "--gpus 2 --cpus 4"
    half = wants(1, 500, memory_mib=100)
    cut = reduced(Demand.of(half), asked(cluster(host(gpus=1), held=(allocation("x", [0], 800),)), half))
    assert cut is not None and options(Demand.of(half), cut) == "--gpus 0.2"
    assert reduced(Demand.of(wants(2)), {"nearest": None}) is None
    assert reduced(Demand.of(wants(1)), asked(cluster(host(gpus=1), held=(allocation("x", [0]),)), wants(1))) is None
    bare = wants(cpu_milli=2000)
    assert reduced(Demand.of(bare), asked(cluster(host(cpus=1), held=(allocation("x", []),)), bare)) is None


def test_another_model_or_any_device_may_do_instead() -> None:
    hosts = [host(), host("h2", model="NVIDIA H100 80GB"), host("h3", model="L4")]
    picky = Demand.of(wants(1, gpu_models=["a100"], gpu_affinity=["h1-0"]))
    assert [options(picky, other) for other in other_kinds(picky, hosts)] == [
        "--gpu-model L4",
        "--gpu-model 'NVIDIA H100 80GB'",
        "any device instead of those named",
    ]
    assert other_kinds(Demand.of(wants(1)), hosts) == []


def test_cutting_down_again_and_again_comes_to_what_fits() -> None:
    held = tuple(allocation("x", [n], 300 + 200 * n, gpu_memory_mib=20_000, cpu_milli=1500) for n in range(4))
    engine = cluster(host(), held=held)
    resources = wants(1, 900, gpu_memory_mib=30_000, cpu_milli=4000)
    report = asked(engine, resources)
    for _ in range(3):
        cut = reduced(Demand.of(resources), report)
        if cut is None:
            break
        resources, report = cut.to_record(), asked(engine, cut.to_record())
    assert report["fits"]
    assert (resources["gpu_milli"], resources["gpu_memory_mib"], resources["cpu_milli"]) == (700, 20_960, 2000)


def jobs_running(**priorities: int) -> dict[str, dict[str, Any]]:
    return {
        name: job(job_id=name, name=name, state="running", priority=priority, attempts=[attempt()])
        for name, priority in priorities.items()
    }


def test_the_least_important_job_whose_end_makes_room_is_named() -> None:
    held = allocation("vip", [0, 1]), allocation("low", [2], 500), allocation("lower", [3])
    engine = cluster(host(), held=held)
    answer = why(
        job(resources=wants(1)),
        fit=asked(engine, wants(1)),
        allocations=held,
        jobs=jobs_running(vip=90, low=20, lower=10),
    )
    assert [one["job_id"] for one in answer["held_by"]] == ["lower", "low", "vip"]
    assert {one["host"] for one in answer["held_by"]} == {"alpha"}
    assert "actorgrid cancel lower would make room on alpha: lower (priority 10)" in answer["next_steps"]


def test_nobody_is_told_to_cancel_what_matters_more_or_a_session_or_half_the_cluster() -> None:
    resources = wants(4)
    vip = allocation("vip", [0])
    assert freeing(host(), holders(host(), [vip], jobs_running(vip=51)), resources, 50) == []
    assert freeing(host(), holders(host(), [vip], jobs_running(vip=50)), resources, 50) == ["vip"]
    session = {**allocation("", [0]), "owner": {"session_id": "s1"}}
    found = holders(host(), [session], {})
    assert found[0]["name"] == "a client's session"
    assert freeing(host(), found, resources, 50) == []
    many = [allocation(f"j{n}", [n]) for n in range(4)]
    assert freeing(host(), holders(host(), many, jobs_running(j0=1, j1=1, j2=1, j3=1)), resources, 50) == []


def test_what_is_named_to_cancel_is_enough_and_not_too_much() -> None:
    held = [allocation("a", [0], 600), allocation("b", [1], 600), allocation("c", [2, 3]), allocation("d", [], 0)]
    known = holders(host(), held, jobs_running(a=10, b=20, c=30, d=5))
    assert freeing(host(), known, wants(1), 50) == ["a"]
    assert freeing(host(), known, wants(2), 50) == ["a", "b"]
    assert freeing(host(), known, wants(3), 50) == ["a", "c"]
    tight = host(cpus=4)
    assert freeing(tight, known, wants(0, cpu_milli=1000), 50) == ["d"]


def test_time_limits_say_when_there_is_room_at_the_latest() -> None:
    held = allocation("a", [0, 1]), allocation("b", [2, 3])
    jobs = jobs_running(a=50, b=50)
    jobs["a"]["max_execution_time_s"] = 610.0  # began 10 s ago
    fit = asked(cluster(host(), held=held), wants(2))
    answer = why(job(resources=wants(2)), fit=fit, allocations=held, jobs=jobs)
    assert answer["estimated_start"] == {"at": NOW + 600, "from": "time_limits"}
    assert answer["next_step"].startswith("wait about 10 min 0 s")
    four = why(job(resources=wants(4)), fit=asked(cluster(host(), held=held), wants(4)), allocations=held, jobs=jobs)
    assert four["estimated_start"] is None  # b has no limit
    behind = why(job(resources=wants(2)), fit={**fit, "position": 2}, allocations=held, jobs=jobs)
    assert behind["estimated_start"] is None  # whoever is ahead may take the room


def test_room_is_counted_as_the_engine_counts_it() -> None:
    held = [allocation("a", [0], 600, gpu_memory_mib=30_000), allocation("b", [1, 2])]
    for resources in (wants(1, 400), wants(1, 500), wants(2, 400), wants(1, 400, gpu_memory_mib=20_000), wants(3)):
        engine = cluster(host(), held=tuple(held))
        assert fits(host(), held, resources) == asked(engine, resources)["fits"]
    assert fits_at(host(), holders(host(), held, {}), wants(4)) is None


def test_a_reservation_stands_before_every_guess() -> None:
    held = (allocation("a", [0, 1, 2, 3]),)
    reservation = {"starts_at": NOW + 250, "nodes": ["h1"]}
    fit = asked(cluster(host(), held=held), wants(2), position=2, reservation=reservation)
    answer = why(job(resources=wants(2)), fit=fit, allocations=held, jobs=jobs_running(a=50))
    assert answer["reservation"] == {**reservation, "stopping": []}
    assert answer["estimated_start"] == {"at": NOW + 250, "from": "reservation"}
    assert answer["next_step"] == "wait about 4 min 10 s: its room on alpha is reserved"
    assert sum(step.startswith("wait") for step in answer["next_steps"]) == 1
    due = why(job(resources=wants(2)), fit={**fit, "reservation": {"starts_at": NOW - 1, "nodes": []}})
    assert due["next_step"] == "wait a moment"
    vague = why(job(resources=wants(2)), fit={**fit, "reservation": {"starts_at": None, "nodes": ["h1"]}})
    assert "room is kept for it on alpha" in vague["reasons"]


def test_a_reservation_may_have_others_stopped_for_it() -> None:
    fit = {"fits": False, "total_nodes": 1, "reservation": {"start": NOW + 5, "nodes": ["h1"], "stopping": ["x", "y"]}}
    answer = why(job(resources=wants(2)), fit=fit)
    assert answer["reservation"] == {"starts_at": NOW + 5, "nodes": ["h1"], "stopping": ["x", "y"]}
    assert "x, y are being stopped to make room for it" in answer["notes"]


def test_a_job_that_fits_but_would_be_in_the_way_of_a_reservation_hears_whose() -> None:
    fit = asked(cluster(host()), wants(1), position=3, held_up_by=["big"])
    answer = why(job(resources=wants(1)), fit=fit)
    assert answer["headline"] == "there is room for it now, but it is kept for big; 2 jobs are ahead"
    assert answer["held_up_by"] == ["big"] and "actorgrid why big" in answer["next_steps"]


# -- a job that waits for something else


def test_a_job_that_waits_for_others_names_them() -> None:
    answer = why(job(depends_on=["a", "b"]), dependencies={"a": "succeeded", "b": "running"})
    assert answer["headline"] == "it depends on b (running)"
    assert answer["depends_on"] == [{"job_id": "b", "state": "running"}]
    assert answer["next_step"] == "actorgrid why b"
    many = why(job(), dependencies={f"d{n}": "queued" for n in range(9)})
    assert many["headline"].endswith("d4 (queued) and 4 more")


def test_a_job_between_attempts_says_when_the_next_starts() -> None:
    failed = attempt(error={"message": "exit status 3"})
    answer = why(job(not_before=NOW + 10, attempts=[failed], retries_left=1))
    assert answer["headline"] == "attempt 1 ended (exit status 3); the next one starts in 10 s"
    assert answer["notes"] == ["after that, 1 further retry would be left"]
    assert answer["estimated_start"] == {"at": NOW + 10, "from": "retry"} and answer["not_before"] == NOW + 10
    assert why(job(not_before=NOW + 2))["headline"] == "it is tried again in 2.0 s"


def test_a_job_that_fits_is_about_to_start_unless_others_are_ahead() -> None:
    fit = asked(cluster(host()), wants(1))
    assert why(job(resources=wants(1)), fit=fit)["headline"] == "it fits now and is about to be placed"
    behind = why(job(resources=wants(1)), fit={**fit, "position": 2})
    assert behind["headline"] == "there is room for it now; 1 job is ahead"


def test_without_an_answer_of_the_scheduler_that_is_said() -> None:
    answer = why(job(), problems=("the disk is full",))
    assert answer["headline"] == "the scheduler did not answer just now"
    assert answer["notes"] == ["host: the disk is full"] and answer["explain"] is None
    held = why(job(), fit={"fits": True, "host": "this host's devices are not known yet"})
    assert held["headline"] == "this host's devices are not known yet"


# -- a job that runs, or ran


def test_a_running_job_names_its_gpus_and_its_limit() -> None:
    record = job(state="running", attempts=[attempt(gpu_indexes=[3])], max_execution_time_s=70.0)
    answer = why(record)
    assert answer["headline"] == "attempt 1 has been running for 10 s on GPU 3 of alpha"
    assert answer["notes"] == ["it is stopped at its time limit, in 1 min 0 s"]
    stopping = why({**record, "cancel_requested": True})
    assert "asked to stop" in stopping["notes"][1] and "kill_grace_s" in stopping["next_step"]


def test_a_job_that_is_stopped_for_another_says_for_whom_and_how_long_it_has() -> None:
    asked = {"asked_at": NOW - 2, "grace_s": 5.0, "for_job": "j9"}
    record = job(state="running", attempts=[attempt(preemption=asked)], deadline=NOW + 90)
    answer = why(record)
    assert answer["notes"] == [
        "it was asked to end so that j9 can start, and has 3.0 s left to save its work",
        "its deadline is in 1 min 30 s (it counts under scheduling.queue=edf)",
    ]
    assert answer["next_step"] == "wait: it starts again by itself; actorgrid why j9"
    late = why(job(state="running", attempts=[attempt(preemption={**asked, "grace_s": 1.0})], deadline=NOW - 3))
    assert late["notes"][0].endswith("and is being killed, as its grace is over")
    assert late["notes"][1] == "its deadline passed 3.0 s ago"


def test_a_preempted_job_that_waits_says_for_whom_it_was_stopped_and_how_often() -> None:
    over = attempt(state="preempted", ended_at=NOW - 1, preemption={"asked_at": 1.0, "grace_s": 5.0, "for_job": "j9"})
    fit = {"fits": True, "position": 1, "total_nodes": 1}
    answer = why(job(attempts=[over], preemptions=3), fit=fit)
    assert answer["notes"][0] == (
        "attempt 1 was stopped for j9; it waits in its old place (preempted 3 of at most 10 times; that costs no retry)"
    )


def test_hosts_of_one_name_are_told_apart() -> None:
    hosts = {"h1": host("h1", "node"), "h2": host("h2", "node")}
    answer = why(job(state="running", attempts=[attempt(host="h2")]), hosts=hosts)
    assert answer["headline"].endswith("on no GPU on node (h2)")


def test_a_job_that_succeeded_says_how_long_it_took() -> None:
    done = attempt(state="succeeded", ended_at=NOW - 4)
    answer = why(job(state="succeeded", attempts=[attempt(), done], ended_at=NOW - 4))
    assert answer["headline"] == "it ran for 6.0 s, 4.0 s ago"
    assert answer["notes"] == ["2 attempts were made"] and answer["next_step"] == "actorgrid logs j1"


def test_a_cancelled_job_says_by_whom() -> None:
    error = {"message": "cancelled by ann before it started"}
    answer = why(job(state="cancelled", error=error, ended_at=NOW - 3))
    assert answer["headline"] == "cancelled by ann before it started, 3.0 s ago"


def failed(code: str, message: str, **more: Any) -> dict[str, Any]:
    last = {name: more.pop(name) for name in ("signal", "exit_code") if name in more}
    details = more.pop("details", {})
    error = {"code": code, "message": message, "asked": "", "found": "", "hint": "", "details": details}
    error |= {name: more.pop(name) for name in ("asked", "found", "hint") if name in more}
    tried = attempt(state="failed", ended_at=NOW - 5, error=error, **last)
    return job(**{"state": "failed", "error": error, "attempts": [tried], "ended_at": NOW - 5, **more})


def test_a_failed_job_gives_the_errors_own_hint_first() -> None:
    answer = why(failed("TaskFailed", "cannot run trian", hint="check the spelling", details={"exit_code": 127}))
    assert answer["headline"] == "cannot run trian"
    assert answer["next_steps"] == ["check the spelling", "actorgrid logs --stderr j1"]
    assert answer["notes"] == ["one attempt was made; the last ran for 5.0 s"]


@pytest.mark.parametrize(
    ("record", "step"),
    [
        (
            failed("TaskTimedOut", "too long", max_execution_time_s=90.0),
            "give it longer than 1 min 30 s with --timeout",
        ),
        (
            failed("MemoryLimitExceeded", "too much", resources=wants(memory_mib=512)),
            "ask for more than 512 MiB with --memory",
        ),
        (
            failed("TaskFailed", "was ended by signal 9", signal=9),
            "if nobody killed it, the host ran out of memory (dmesg tells): reserve enough with --memory",
        ),
        (
            failed("TaskFailed", "was ended by signal 11", signal=11),
            "it crashed in native code: --env PYTHONFAULTHANDLER=1 shows where in a Python program",
        ),
        (failed("TaskFailed", "left with status 1"), "actorgrid logs --stderr j1"),
        (failed("WorkerLost", "the worker died"), "--retries N would try again after a failure that may pass"),
        (failed("WorkerLost", "gone", state="lost"), "actorgrid logs --stderr j1"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_each_kind_of_failure_has_its_next_step(record: dict[str, Any], step: str) -> None:
    assert step in why(record)["next_steps"]


def test_the_last_words_on_stderr_are_kept() -> None:
    text = "".join(f"line {n}\n" for n in range(9))
    answer = why(failed("TaskFailed", "left with status 1", details={"stderr": text}))
    assert answer["stderr_tail"] == [f"line {n}" for n in range(4, 9)]
    assert why(failed("TaskFailed", "raised", details={"traceback": "a\nValueError: b"}))["stderr_tail"][-1] == (
        "ValueError: b"
    )


def test_a_job_that_went_down_with_another_names_the_first_cause() -> None:
    root = {**failed("TaskFailed", "the command left with status 3"), "job_id": "first", "name": "fetch"}
    error = {"code": "DependencyFailed", "message": "job mid ended failed", "hint": "actorgrid why mid"}
    answer = why(job(state="failed", error=error, ended_at=NOW), root=root)
    assert answer["headline"] == "job first (fetch), which it waited for, failed: the command left with status 3"
    assert answer["next_step"] == "actorgrid why first" and answer["notes"] == ["it never started"]


def test_every_state_answers_with_the_same_keys() -> None:
    records = [
        job(),
        job(state="placed", attempts=[attempt()]),
        job(state="running", attempts=[attempt()]),
        job(state="succeeded", attempts=[attempt()]),
        failed("TaskFailed", "no"),
        job(state="cancelled"),
        job(state="lost"),
    ]
    keys = {tuple(why(record)) for record in records}
    assert len(keys) == 1
    for record in records:
        answer = why(record)
        assert answer["headline"] and answer["reasons"][0] == answer["headline"]
        assert answer["next_steps"] and answer["next_step"] == answer["next_steps"][0]


# -- words


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0.0 s"), (0.44, "0.4 s"), (59, "59 s"), (185, "3 min 5 s"), (7440, "2 h 4 min")]
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        (wants(1), "1 whole GPU"),
        (wants(2, gpu_models=["h100", "a100"]), "2 whole H100 or A100s on one host"),
        (wants(2, gpu_memory_mib=1536), "2 whole GPUs, each with 1.5 GiB of GPU memory on one host"),
        (wants(1, cpu_milli=8000), "1 whole GPU and 8 CPUs on one host"),
        (wants(cpu_milli=500, memory_mib=100), "0.5 CPUs and 100 MiB of memory on one host"),
        (wants(cpu_milli=0), "next to nothing"),
    ],
)
def test_requests_read_as_people_say_them(resources: dict[str, Any], text: str) -> None:
    assert needs(resources) == text


def test_amounts_and_lists_read_as_people_say_them() -> None:
    assert [mebibytes(amount) for amount in (512, 1024, 1536)] == ["512 MiB", "1 GiB", "1.5 GiB"]
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more"
    assert nearest_has(wants(2), {"gpus": 1, "gpu_milli": 500, "memory_mib": 64, "slots": 2}) == (
        "has 1 free and lacks 64 MiB of memory, 2 slots"
    )


# -- gangs


def gang_fit(hosts: tuple[dict[str, Any], ...], held: tuple[dict[str, Any], ...], **more: Any) -> dict[str, Any]:
    resources = wants(2, gang=3, **more)
    scheduler = Scheduler(cluster(*hosts, held=held))
    demand = Demand(1000, gpu_count=2, gang=3, layout=APART if resources.get("spread") else NEAR)
    return {**scheduler.explain_demand(demand), "position": 1}


def test_a_gang_that_waits_is_told_how_many_members_fit_and_which_host_lacks_what() -> None:
    hosts = host("h1", "host-a", 4), host("h2", "host-b", 4), host("h3", "host-c", 1)
    fit = gang_fit(hosts, (allocation("x", [0, 1, 2], host_id="h2"),))
    answer = why(job(resources=wants(2, gang=3)), fit=fit, hosts={one["host_id"]: one for one in hosts})
    assert answer["headline"] == (
        "it is a gang of 3, each with 2 whole GPUs on one host; 2 of them fit now, and all start together"
    )
    assert "host-a has room for 2" in answer["reasons"]
    assert "host-b has 1 free" in answer["reasons"]
    assert "host-c has room for none: too few GPUs" in answer["reasons"]
    assert answer["next_steps"][0] == "ask for less: with --gang 2 it would fit now"
    apart = gang_fit(hosts, (), spread=True)
    answer = why(job(resources=wants(2, gang=3, spread=True)), fit=apart)
    assert "each on a host of its own" in answer["headline"]
    assert "2 of them fit now" in answer["headline"]


def test_a_gang_that_runs_names_its_hosts_and_one_that_ends_says_because_of_whom() -> None:
    members = [
        {"rank": rank, "host": f"h{rank % 2 + 1}", "state": state, "ended_at": NOW if state == "failed" else None}
        for rank, state in enumerate(("running", "failed", "running"))
    ]
    hosts = {"h1": host(), "h2": host("h2", "beta")}
    running = job(state="running", attempts=[attempt(members=members, ending={"rank": 1, "at": NOW})])
    answer = why(running, hosts=hosts)
    assert answer["headline"] == "attempt 1 has been running for 10 s with 3 members on alpha, beta"
    assert "rank 1 ended as failed; 2 more are being stopped" in answer["notes"]


# -- what its submitter notes


def test_annotations_are_shown_with_every_job_also_those_that_nobody_checked() -> None:
    answer = why(job(annotations={"sweep": "3", "owner": "ann"}))
    assert answer["annotations"] == {"sweep": "3", "owner": "ann"}
    assert "annotations: sweep=3, owner=ann" in answer["notes"]
    assert "annotations" not in why(job()) and "annotations" not in why(job(annotations={}))
    for anything in ("text", [1], {"a": 1}, 7):
        assert why(job(annotations=anything))["annotations"] == anything
