from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.work.core import (
    LeaseKey,
    LeaseLost,
    LendWorker,
    ReclaimWorker,
    RetireWorker,
    StartWorker,
    WorkerPools,
)

CPU = LeaseKey("s1", (), ())
GPU = LeaseKey("s1", ("GPU-1",), ())


def pools(warm: int = 0, most: int = 4) -> WorkerPools:
    return WorkerPools({"general": (warm, most), "gpu_compute": (0, most)}, "x")


def started(instructions: list[object]) -> list[str]:
    return [each.worker_id for each in instructions if isinstance(each, StartWorker)]


def test_a_lease_without_a_worker_starts_one_and_gets_it_when_ready() -> None:
    made = pools()
    (start,) = made.lease_granted("L1", "general", CPU)
    assert isinstance(start, StartWorker)
    assert made.worker_ready(start.worker_id) == [LendWorker(start.worker_id, "L1")]


def test_a_warm_worker_is_taken_at_once_and_replaced() -> None:
    made = pools(warm=1)
    (worker,) = started(made.tick())
    made.worker_ready(worker)
    first, second = made.lease_granted("L1", "general", CPU)
    assert first == LendWorker(worker, "L1")
    assert isinstance(second, StartWorker)


def test_a_lease_said_twice_counts_once() -> None:
    made = pools()
    made.lease_granted("L1", "general", CPU)
    assert made.lease_granted("L1", "general", CPU) == []


def test_a_worker_that_touched_a_gpu_is_retired() -> None:
    made = pools()
    (worker,) = started(made.lease_granted("L1", "gpu_compute", GPU))
    made.worker_ready(worker)
    assert made.lease_ended("L1") == [RetireWorker(worker)]


def test_a_cpu_worker_goes_back_to_its_own_session_only() -> None:
    made = pools()
    (worker,) = started(made.lease_granted("L1", "general", CPU))
    made.worker_ready(worker)
    assert made.lease_ended("L1") == [ReclaimWorker(worker)]
    assert made.worker_idle(worker) == []
    assert started(made.lease_granted("L2", "general", LeaseKey("s2", (), ()))) not in ([], [worker])
    assert made.lease_granted("L3", "general", CPU) == [LendWorker(worker, "L3")]


def test_a_worker_that_does_not_let_go_is_retired() -> None:
    made = pools()
    (worker,) = started(made.lease_granted("L1", "general", CPU))
    made.worker_ready(worker)
    made.lease_ended("L1")
    assert made.worker_overdue(worker) == [RetireWorker(worker)]
    assert made.worker_overdue(worker) == []


def test_a_full_pool_makes_room_from_idle_workers_of_other_sessions() -> None:
    made = pools(most=1)
    (worker,) = started(made.lease_granted("L1", "general", CPU))
    made.worker_ready(worker)
    made.lease_ended("L1")
    made.worker_idle(worker)
    assert made.lease_granted("L2", "general", LeaseKey("s2", (), ())) == [RetireWorker(worker)]
    (fresh,) = started(made.worker_ended(worker))
    assert made.worker_ready(fresh) == [LendWorker(fresh, "L2")]


def test_a_dead_worker_loses_its_lease() -> None:
    made = pools()
    (worker,) = started(made.lease_granted("L1", "general", CPU))
    made.worker_ready(worker)
    assert made.worker_ended(worker) == [LeaseLost("L1", worker)]
    assert list(made.leases()) == []


def test_a_worker_that_dies_while_starting_is_started_again() -> None:
    made = pools()
    (worker,) = started(made.lease_granted("L1", "general", CPU))
    assert len(started(made.worker_ended(worker))) == 1


def test_nothing_starts_after_stop() -> None:
    made = pools(warm=2)
    workers = started(made.tick())
    assert {each.worker_id for each in made.stop() if isinstance(each, RetireWorker)} == set(workers)
    assert made.worker_ended(workers[0]) == []
    assert made.lease_granted("L1", "general", CPU) == []


@given(st.lists(st.tuples(st.sampled_from(["grant", "end", "ready", "die", "idle", "tick"]), st.integers(0, 5))))
def test_no_pool_outgrows_its_size_and_no_worker_has_two_leases(steps: list[tuple[str, int]]) -> None:
    made = WorkerPools({"general": (1, 3)}, "x")
    for step, number in steps:
        workers = list(made.workers)
        worker = workers[number % len(workers)] if workers else "none"
        match step:
            case "grant":
                made.lease_granted(f"L{number}", "general", LeaseKey(f"s{number % 2}", (), (), uid=number % 2 * 7))
            case "end":
                made.lease_ended(f"L{number}")
            case "ready":
                made.worker_ready(worker)
            case "die":
                made.worker_ended(worker)
            case "idle":
                made.worker_idle(worker)
            case "tick":
                made.tick()
        assert len(made.workers) <= 3
        leases = [each.lease_id for each in made.workers.values() if each.lease_id]
        assert len(leases) == len(set(leases))
        assert set(leases) <= set(made.leases())
        assert all(each.uid == made.key_of(each.lease_id).uid for each in made.workers.values() if each.lease_id)
    for _ in range(12):  # when all goes well from here, every lease is served as room allows
        for worker in list(made.workers.values()):
            if worker.state == "starting":
                made.worker_ready(worker.worker_id)
            elif worker.state == "closing":
                made.worker_idle(worker.worker_id)
            elif worker.state == "retiring":
                made.worker_ended(worker.worker_id)
    served = sum(1 for lease in made.leases() if made.worker_of(lease))
    assert served == min(3, len(list(made.leases())))


def test_a_worker_of_a_uid_serves_that_alone_and_a_warm_one_makes_room_for_it() -> None:
    made = pools(warm=1, most=1)
    (warm,) = started(made.tick())
    made.worker_ready(warm)
    apart = LeaseKey("s1", (), (), uid=7)
    assert made.lease_granted("L1", "general", apart) == [RetireWorker(warm)]
    (own,) = [each for each in made.worker_ended(warm) if isinstance(each, StartWorker)]
    assert own.uid == 7
    assert made.lease_ended("L1") == [] and made.worker_ready(own.worker_id) == []
    assert made.lease_granted("L2", "general", CPU) == [RetireWorker(own.worker_id)]


def test_a_worker_of_a_uid_that_nobody_waits_for_is_ended() -> None:
    made = pools(warm=1)
    (warm,) = started(made.tick())
    made.worker_ready(warm)
    (own,) = started(made.lease_granted("L1", "general", LeaseKey("s1", (), (), uid=7)))
    made.lease_ended("L1")
    made.worker_ready(own)
    assert made.tick() == [RetireWorker(own)]


def test_a_worker_started_for_a_lease_that_ended_meanwhile_does_not_stay() -> None:
    made = pools(warm=1)
    (warm,) = started(made.tick())
    (worker,) = started(made.lease_granted("L1", "gpu_compute", GPU))
    made.lease_ended("L1")
    made.worker_ready(worker)
    assert made.tick() == [RetireWorker(worker)]
    made.worker_ended(worker)
    made.worker_ready(warm)
    assert made.tick() == [], "the warm ones stay"


def test_a_used_worker_that_its_session_does_not_take_again_is_ended_in_time() -> None:
    made = WorkerPools({"general": (0, 4)}, "x", {"general": 10.0})
    (worker,) = started(made.lease_granted("L1", "general", CPU))
    made.worker_ready(worker)
    assert made.tick(1_000.0) == [], "a leased one is not idle"
    assert made.lease_ended("L1") == [ReclaimWorker(worker)]
    made.worker_idle(worker, 1_000.0)
    assert made.tick(1_010.0) == []
    assert made.lease_granted("L2", "general", CPU) == [LendWorker(worker, "L2")]
    made.lease_ended("L2")
    made.worker_idle(worker, 1_020.0)
    assert made.tick(1_030.0) == [], "it counts from when it was let go of last"
    assert made.tick(1_030.5) == [RetireWorker(worker)]


def test_a_worker_that_was_spoiled_while_it_let_go_is_retired_and_not_kept_for_nobody() -> None:
    made = pools()
    (worker,) = started(made.lease_granted("L1", "general", CPU))
    made.worker_ready(worker)
    assert made.lease_ended("L1") == [ReclaimWorker(worker)]
    made.worker_spoiled(worker)
    assert made.worker_idle(worker) == [RetireWorker(worker)]
