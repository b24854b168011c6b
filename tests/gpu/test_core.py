"""The coordinator's decisions against the real ledger, through random histories with answers late and lost."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actorgrid.actors.gpu.core import CoordinatorCore
from actorgrid.actors.gpu.messages import AcquireLease
from actorgrid.actors.gpu.placement_records import by_placement
from actorgrid.actors.gpu.proposals import Grant, Termination
from actorgrid.actors.ledger.attempt_ids import attempt_of
from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.commands import (
    CancelJob,
    EditJob,
    EndAttempt,
    NewTerm,
    RegisterHost,
    ReleaseLease,
    SetQuota,
    SubmitJobs,
)
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.scheduling.policies import SchedulingPolicy
from actorgrid.errors import QuotaExceeded, UnknownPolicy
from tests.consensus.rig import host_record, job_record
from tests.gpu.rig import resources

GPUS = 3


def waits(core: CoordinatorCore, id: str) -> bool:
    """Whether a job or lease of that id waits for room."""
    return id in core.jobs._queued or id in core.mirror.scheduler.waiting


class World:
    """A ledger, a coordinator that may be killed, and proposals that reach the ledger in any order or late."""

    def __init__(self, policy: str, queue: str | SchedulingPolicy = "easy_backfill") -> None:
        self.policy = policy
        self.queue = queue
        self.ledger = Ledger()
        self.now = 0.0
        self.sent: list[Grant] = []
        self.terminations: list[Termination] = []
        self.incarnation = 0
        self.jobs = 0
        self.apply(NewTerm(term=1))
        self.core = self.make_core()

    def make_core(self) -> CoordinatorCore:
        core = CoordinatorCore("h", self.incarnation + 1, self.policy, 50, lambda: 0, queue=self.queue)
        self.incarnation += 1
        self.let_stand(core)
        self.load(core)
        return core

    def let_stand(self, core: CoordinatorCore) -> None:
        """Let calls stand behind others, however long those take."""
        core.chains.allowed = True
        core.chains._depth = lambda kind: 3  # type: ignore[method-assign]

    def load(self, core: CoordinatorCore) -> None:
        live = self.ledger.live()
        self.mirror_jobs, self.mirror_allocations, self.mirror_quotas = live.jobs, live.allocations, live.quotas
        core.load(live.jobs, live.allocations, live.hosts, self.now, live.quotas)

    def apply(self, command: Command) -> Any:
        outcome = self.ledger.apply(self.ledger.index + 1, replace(command, at=command.at or self.now))
        if hasattr(self, "core"):
            live = self.ledger.live()
            for mine, theirs in (
                (self.mirror_jobs, live.jobs),
                (self.mirror_allocations, live.allocations),
                (self.mirror_quotas, live.quotas),
            ):
                mine.clear()
                mine.update(theirs)
            self.core.changed(outcome.changes, self.now)
        return outcome

    def register(self) -> None:
        devices = [{"uuid": f"u{i}", "index": i, "model": "H100", "memory_mib": 1000} for i in range(GPUS)]
        host = {"host_id": "h", "incarnation": self.incarnation, "cpu_milli": 4000, "memory_mib": 1000}
        self.apply(RegisterHost(host={**host, "devices": devices}))

    def submit(self, needs: dict[str, Any], after_last: bool = False, user: str = "ann", **more: Any) -> None:
        self.jobs += 1
        depends = [f"j{self.jobs - 1}"] if after_last and self.jobs > 1 else []
        job = {
            "job_id": f"j{self.jobs}",
            "resources": needs,
            "depends_on": depends,
            "retries_left": 2,
            "user_id": user,
            "kind": "command" if needs["gpu_count"] else "function",
            "payload_digest": "0" * 64,
            **more,
        }
        self.apply(SubmitJobs(jobs=[job]))

    def lease(self, needs: dict[str, Any], user: str = "ann") -> None:
        self.jobs += 1
        if self.core.records.registered:
            with suppress(QuotaExceeded):
                self.core.leases.ask(AcquireLease(f"l{self.jobs}", "s", needs, "gpu_compute", user_id=user), self.now)

    def limit(self, user: str, gpu_milli: int | None, cpu_milli: int | None) -> None:
        self.apply(SetQuota(user, {"gpu_milli": gpu_milli, "cpu_milli": cpu_milli}, "test", at=self.now))

    def unlimit(self, user: str) -> None:
        self.apply(SetQuota(user, None, "test", at=self.now))

    def schedule(self) -> None:
        if self.core.records.registered:
            self.sent += self.core.schedule(self.now, 8)
            self.terminations += self.core.proposals.take_terminations()

    def answer(self, which: int) -> None:
        """One proposal reaches the ledger; its answer reaches whoever coordinates now."""
        if not self.sent:
            return
        grant = self.sent.pop(which % len(self.sent))
        outcome = self.apply(grant.command(1))
        if outcome.error is not None:
            self.core.refused(grant, self.now)

    def answer_termination(self, which: int) -> None:
        """A termination reaches the ledger, perhaps of a coordinator that is gone."""
        if not self.terminations:
            return
        order = self.terminations.pop(which % len(self.terminations))
        outcome = self.apply(order.command(1))
        if outcome.error is not None:
            self.core.termination_refused(order)

    def obey(self, which: int) -> None:
        """A host ends an attempt that was asked to."""
        asked = [
            job["attempts"][-1]
            for job in self.ledger.jobs.values()
            if job["attempts"] and job["attempts"][-1]["preemption"] and job["attempts"][-1]["ended_at"] is None
        ]
        if asked:
            attempt = asked[which % len(asked)]
            for part in attempt.get("members", (attempt,)):
                self.apply(EndAttempt(part["allocation_id"], attempt["token"], "preempted"))

    def missed(self, which: int, ends: bool) -> None:
        """A grant is committed, and may be over, before the coordinator hears of it; then it follows anew."""
        if not self.sent:
            return
        grant = self.sent.pop(which % len(self.sent))
        core, self.core = self.core, self.make_core_like(self.core)
        outcome = self.apply(grant.command(1))
        if ends and outcome.error is None:
            for id in [id for id in self.ledger.allocations if attempt_of(id) == grant.id]:
                token = list(self.ledger.allocations[id]["token"])
                self.apply(EndAttempt(attempt_id=id, token=token, outcome="failed"))
        self.core = core
        self.load(core)
        if outcome.error is None:
            core.committed(grant, self.now)
        else:
            core.refused(grant, self.now)

    def make_core_like(self, core: CoordinatorCore) -> CoordinatorCore:
        """Somebody else to hear what *core* does not."""
        other = CoordinatorCore("h", core.records.own_incarnation, self.policy, 50, lambda: 0, queue=self.queue)
        self.let_stand(other)
        self.load(other)
        return other

    def end(self, which: int, outcome: str) -> None:
        over = {
            member["allocation_id"]
            for job in self.mirror_jobs.values()
            for attempt in job["attempts"][-1:]
            for member in attempt.get("members", ())
            if member["ended_at"] is not None
        }
        held = sorted(set(self.ledger.allocations) - over)
        if not held:
            return
        record = self.ledger.allocations[held[which % len(held)]]
        if record["owner"]["kind"] == "session":
            self.apply(ReleaseLease(lease_id=record["allocation_id"]))
        else:
            token = list(record["token"])
            self.apply(EndAttempt(record["allocation_id"], token, outcome, retry_at=self.now + 1.0))

    def cancel(self, which: int) -> None:
        if self.jobs:
            self.apply(CancelJob(job_id=f"j{which % self.jobs + 1}", by="test"))

    def edit(self, which: int, needs: dict[str, Any]) -> None:
        """A job that waits asks for something else, while a grant of what it asked before may be on its way."""
        job = self.ledger.jobs.get(f"j{which % self.jobs + 1}") if self.jobs else None
        if job is not None and "gang" not in job["resources"]:
            self.apply(EditJob(job["job_id"], resources=needs, edits=job.get("edits", 0)))

    def kill(self) -> None:
        """A new coordinator starts from the ledger; what the old one proposed may still arrive."""
        self.core = self.make_core()

    def resubscribe(self) -> None:
        self.load(self.core)

    def check(self) -> None:
        core = self.core
        if core.mirror.stale:
            core.mirror.rebuild()
        given = by_placement(self.ledger.allocations)
        for id, records in given.items():
            if "behind" in records[0]:
                assert id not in core.mirror.engine, f"{id} stands behind another, and holds a place"
                continue
            assert id in core.mirror.engine, f"{id} is given out but not held"
            assert core.mirror.engine.placement(id).shares == tuple(
                ("h", tuple(each["gpu_indexes"])) for each in records
            )
        held = {id for id in core.mirror.engine.placements() if isinstance(id, str)}
        assert held <= set(given) | set(core.proposals.grants)
        waiting = {job["job_id"] for job in self.mirror_jobs.values() if job["state"] == "queued"}
        queued = {id for id in waiting if waits(core, id) or id in core.proposals.failures or id in core.jobs._doubtful}
        in_flight = {grant.job_id for grant in core.proposals.grants.values()}
        assert waiting == queued | (in_flight & waiting), "a waiting job is neither queued nor being granted"
        self.check_use()

    def check_use(self) -> None:
        """What counts as used is what the ledger gave out and what is being granted."""
        used: dict[str, list[int]] = {}
        for record in self.ledger.allocations.values():
            if "behind" in record:
                continue
            one = used.setdefault(record["user_id"], [0, 0])
            one[0] += record["gpu_milli"] * len(record["gpu_indexes"])
            one[1] += record["cpu_milli"]
        for user, (gpu_milli, cpu_milli) in used.items():
            assert self.ledger.quotas.used(user)["gpu_milli"] == gpu_milli
            assert self.ledger.quotas.used(user)["cpu_milli"] == cpu_milli
        for grant in self.core.proposals.grants.values():
            if grant.id in self.core.mirror.engine and grant.id not in by_placement(self.ledger.allocations):
                one = used.setdefault(grant.user_id, [0, 0])
                one[0] += grant.demand.gpu_milli * grant.demand.gpu_count * grant.demand.gang
                one[1] += grant.demand.cpu_milli * grant.demand.gang
        for user in ("ann", "bob"):
            told = self.core.mirror.scheduler.tenant_limits.used(user)
            assert [told.gpu_milli, told.cpu_milli] == used.get(user, [0, 0]), user
        for job in self.core.mirror.scheduler.waiting.values():
            assert not (job.queue and job.queue.held and job.reservation), "one that stands aside has a reservation"


needs = st.builds(
    lambda gpus, memory, cpu: resources(gpus, cpu_milli=cpu, gpu_memory_mib=memory if gpus else 0),
    st.sampled_from((0, 0.25, 0.5, 0.7, 1, 2, 3)),
    st.sampled_from((0, 300, 600)),
    st.sampled_from((0, 500, 3000)),
)
gangs = st.builds(
    lambda gpus, cpu, size: {**resources(gpus, cpu_milli=cpu), "gang": size},
    st.sampled_from((0, 0.25, 0.7, 1)),
    st.sampled_from((0, 500, 1200)),
    st.sampled_from((2, 3)),
)
users = st.sampled_from(("ann", "bob"))
limited = st.sampled_from(("ann", "bob", "*"))
steps = st.one_of(
    st.tuples(st.just("submit"), needs, st.booleans(), users),
    st.tuples(st.just("submit"), needs, st.just(False), users),
    st.tuples(st.just("submit"), gangs, st.just(False), users),
    st.tuples(st.just("lease"), needs, users),
    st.tuples(
        st.just("limit"), limited, st.sampled_from((None, 0, 500, 1000, 2500)), st.sampled_from((None, 0, 1000, 3500))
    ),
    st.tuples(st.just("unlimit"), limited),
    st.tuples(st.just("schedule")),
    st.tuples(st.just("schedule")),
    st.tuples(st.just("answer"), st.integers(0, 7)),
    st.tuples(st.just("answer"), st.integers(0, 7)),
    st.tuples(st.just("end"), st.integers(0, 7), st.sampled_from(("succeeded", "failed", "lost"))),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("missed"), st.integers(0, 7), st.booleans()),
    st.tuples(st.just("edit"), st.integers(0, 30), needs),
    st.tuples(st.just("kill")),
    st.tuples(st.just("register")),
    st.tuples(st.just("resubscribe")),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policy=st.sampled_from(("best_fit", "spread", "random")), history=st.lists(steps, max_size=60))
def test_no_history_loses_a_job_or_lets_the_coordinator_lose_count(policy: str, history: list[tuple[Any, ...]]) -> None:
    world = World(policy)
    world.register()
    for step, *arguments in history:
        world.now += 0.3
        getattr(world, step)(*arguments)
        world.check()
    # Left alone, everything that waits is served: the ledger frees, the coordinator places.
    if not world.core.records.registered:
        world.register()
    for user in ("ann", "bob", "*"):
        world.limit(user, GPUS * 1000, 4000)  # enough for each job that waits, not for two large ones at once
    for _ in range(1000):
        if (
            not world.sent
            and not world.ledger.allocations
            and not world.mirror_jobs
            and not world.core.mirror.scheduler.waiting
        ):
            break
        world.now += 20.0
        world.schedule()
        while world.sent:
            world.answer(0)
        world.end(0, "succeeded")
        world.check()
    assert not world.mirror_jobs, "jobs are left although nothing is in use"
    assert world.core.mirror.engine.allocated_gpu_milli == 0
    assert not world.core.proposals.grants


def test_nothing_is_granted_before_this_incarnation_is_registered() -> None:
    world = World("best_fit")
    world.register()
    world.kill()
    world.submit(resources(1), False)
    assert not world.core.records.registered
    assert world.core.schedule(world.now, 8) == []
    world.register()
    (grant,) = world.core.schedule(world.now, 8)
    assert grant.incarnations == (2,)


def test_a_lease_granted_while_the_ledger_was_away_waits_for_nothing_more() -> None:
    world = World("best_fit")
    world.register()
    world.lease(resources(1))
    world.schedule()
    world.missed(0, False)
    assert not world.core.mirror.scheduler.waiting
    world.end(0, "succeeded")
    assert world.core.schedule(world.now, 8) == []


def test_an_attempt_that_came_and_went_unheard_of_is_tried_again_and_its_room_is_free() -> None:
    world = World("best_fit")
    world.register()
    world.submit(resources(3), False)
    world.schedule()
    world.missed(0, True)
    assert not world.core.proposals.grants
    (grant,) = world.core.schedule(world.now + 5.0, 8)
    assert grant.id == "j1.2"


def test_a_grant_without_an_answer_stays_reserved_and_is_not_decided_again() -> None:
    world = World("best_fit")
    world.register()
    world.submit(resources(3), False)
    world.schedule()
    world.resubscribe()
    assert world.core.schedule(world.now, 8) == []
    world.submit(resources(1), False)
    assert world.core.schedule(world.now, 8) == [], "the room is reserved"
    world.answer(0)
    assert world.ledger.jobs["j1"]["state"] == "placed"


def test_a_refused_grant_is_tried_again_later_each_time() -> None:
    world = World("best_fit")
    world.register()
    world.submit(resources(1), False)
    for pause in (0.1, 0.2, 0.4):
        (grant,) = world.core.schedule(world.now, 8)
        world.core.refused(grant, world.now)
        assert world.core.mirror.engine.allocated_gpu_milli == 0
        assert world.core.schedule(world.now, 8) == []
        assert world.core.next_wakeup == pytest.approx(world.now + pause)
        world.now += pause


def test_a_grant_of_what_a_job_asked_before_an_edit_is_refused_and_it_gets_what_it_asks_for_now() -> None:
    world = World("best_fit")
    world.register()
    world.submit(resources(3), False)
    world.schedule()
    world.edit(0, resources(1, cpu_milli=500))
    world.answer(0)
    assert world.ledger.jobs["j1"]["state"] == "queued" and world.core.mirror.engine.allocated_gpu_milli == 0
    world.now += 0.2
    (grant,) = world.core.schedule(world.now, 8)
    assert (grant.demand.gpu_count, grant.demand.cpu_milli, grant.edits) == (1, 500, 1)
    assert world.apply(grant.command(1)).error is None
    assert world.core.mirror.engine.allocated_gpu_milli == 1000
    world.check()


def test_a_queue_that_was_full_takes_the_rest_when_there_is_room() -> None:
    world = World("best_fit")
    world.register()
    for _ in range(120):
        world.submit(resources(1), False)
    assert len(world.core.mirror.scheduler.waiting) == 50
    for _ in range(200):
        world.now += 1.0
        world.schedule()
        while world.sent:
            world.answer(0)
        world.end(0, "succeeded")
    assert not world.mirror_jobs


def submit_bounded(world: World, needs: dict[str, Any], bound_s: float | None, priority: int = 50) -> str:
    world.jobs += 1
    job = {"job_id": f"j{world.jobs}", "resources": needs, "max_execution_time_s": bound_s, "priority": priority}
    world.apply(SubmitJobs(jobs=[job]))
    return job["job_id"]


def placed(world: World) -> list[str]:
    grants = world.core.schedule(world.now, 8)
    world.sent += grants
    while world.sent:
        world.answer(0)
    return [grant.job_id for grant in grants]


def test_a_job_that_is_stopped_in_time_passes_a_larger_one_and_others_do_not() -> None:
    world = World("best_fit")
    world.register()
    running = submit_bounded(world, resources(2), 100.0)
    assert placed(world) == [running]
    large = submit_bounded(world, resources(3), 50.0)
    endless = submit_bounded(world, resources(1), None)
    late = submit_bounded(world, resources(1), 300.0)
    short = submit_bounded(world, resources(1), 90.0)
    assert placed(world) == [short]
    report = world.core.explain(resources(3), large)
    assert (report["fits"], report["position"]) == (False, 1)
    assert report["reservation"] == {"start": 100.0, "nodes": ["h"], "stopping": []}
    assert world.core.explain(resources(1), late)["position"] == 3
    assert world.core.next_wakeup is not None
    world.now = 90.0
    for which in (1, 0):
        world.end(which, "succeeded")
    assert placed(world) == [large]
    assert endless in world.mirror_jobs


def test_reservations_survive_a_new_start_from_the_ledger() -> None:
    world = World("best_fit")
    world.register()
    submit_bounded(world, resources(2), 100.0)
    placed(world)
    large = submit_bounded(world, resources(3), 50.0)
    assert placed(world) == []
    world.now = 30.0
    world.kill()
    world.register()
    assert placed(world) == []
    assert world.core.explain(resources(3), large)["reservation"]["start"] == 100.0


def test_a_job_without_a_bound_is_not_passed_for_ever() -> None:
    world = World("best_fit")
    world.register()
    submit_bounded(world, resources(2), None)
    placed(world)
    large = submit_bounded(world, resources(3), None)
    passes = submit_bounded(world, resources(1), None)
    assert placed(world) == [passes], "nobody knows when the large one could start"
    world.now = 700.0
    assert placed(world) == []
    report = world.core.explain(resources(3), large)
    assert report["reservation"] == {"start": None, "nodes": ["h"], "stopping": []}
    world.end(1, "succeeded")
    submit_bounded(world, resources(1), 1.0, priority=50)
    assert placed(world) == []


def test_what_the_line_holds_up_is_said_by_the_id_people_know() -> None:
    world = World("best_fit")
    world.register()
    submit_bounded(world, resources(2), 100.0)
    placed(world)
    large = submit_bounded(world, resources(3), 50.0)
    late = submit_bounded(world, resources(1), 300.0)
    assert placed(world) == []
    assert world.core.explain(resources(1), late)["held_up_by"] == [large]


def test_the_engine_weighs_by_what_has_arrived_and_does_so_after_it_was_made_anew() -> None:
    world = World("completion")
    world.register()
    assert world.core.mirror.engine.typical_tasks == ()
    for _ in range(200):
        world.jobs += 1
        lease = AcquireLease(f"l{world.jobs}", "s", resources(gpu_count=1, gpu_milli=250), "gpu_compute")
        world.core.leases.ask(lease, world.now)
        world.core.leases.withdraw(lease.lease_id)
    world.schedule()
    (task,) = world.core.mirror.engine.typical_tasks
    assert (task.gpu_count, task.gpu_milli, task.weight) == (1, 250, 1.0)
    world.register()  # anything about a host makes the engine anew
    world.schedule()
    assert world.core.mirror.engine.typical_tasks == (task,)


def test_the_engine_is_told_which_devices_are_close() -> None:
    world = World("completion")
    world.register()
    host = {"host_id": "h", "incarnation": world.incarnation, "cpu_milli": 4000, "memory_mib": 1000}
    devices = [
        {"uuid": f"u{index}", "index": index, "model": "H100", "memory_mib": 1000, "numa_node": index % 2}
        for index in range(4)
    ]
    world.apply(RegisterHost(host={**host, "devices": devices}))
    world.schedule()
    assert world.core.mirror.engine.nodes()[0].numa == (0, 1, 0, 1)
    placed = world.core.mirror.engine.place(gpu_count=2)
    assert placed is not None and placed.shares == (("h", (0, 2)),)


def test_a_queue_policy_that_is_not_known_is_refused_at_the_start() -> None:
    with pytest.raises(UnknownPolicy) as refused:
        CoordinatorCore("h", 1, "completion", 50, lambda: 0, queue="easy_backfil")
    assert "did you mean easy_backfill?" in refused.value.hint


# -- named devices


def test_a_named_device_is_a_demand_and_no_wish_to_wait_for() -> None:
    ledger = Ledger()
    named = job_record("a", resources={"gpu_affinity": ["GPU-h2-1"]})
    hosts = [RegisterHost(host_record(name), at=1.0) for name in ("h1", "h2")]
    for index, command in enumerate([NewTerm(1, at=1.0), *hosts, SubmitJobs([named], at=1.0)], 1):
        assert ledger.apply(index, command).error is None
    core = CoordinatorCore("h1", 1, "completion", 50, lambda: 0, queue="affinity")
    live = ledger.live()
    core.load(ledger.jobs, ledger.allocations, live.hosts, 1.0, live.quotas)
    [grant] = core.schedule(1.0, 10)  # not only when it has waited for as long as one waits for a rack
    assert grant.shares == (("h2", (1,)),)
