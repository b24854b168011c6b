"""Tenants at their limit: they stand aside, delay nobody, cost nothing, and go on when they have room again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.scheduling.policies import BUILT_IN, find_policy
from actorgrid.actors.scheduling.request import Decision, Request, Start
from actorgrid.actors.scheduling.scheduler import Scheduler
from actorgrid.actors.scheduling.tenant_limits import Amounts, Limits, TenantLimits, amounts_of
from tests.scheduling.cluster import cluster, request

NO_LIMIT: Limits = (None, None, None, None)


def job(id: str, gpus: int = 1, tenant: str = "ann", **more: Any) -> Request:
    return request(id, gpu_count=gpus, tenant=tenant, **more)


def gpus(count: float) -> Limits:
    return (round(1000 * count), None, None, None)


def started(decisions: list[Decision]) -> list[str]:
    return [each.request.id for each in decisions if isinstance(each, Start)]


def limited(scheduler: Scheduler, now: float = 0.0, **counts: float) -> Scheduler:
    scheduler.limit({name: gpus(count) for name, count in counts.items()}, None, now)
    return scheduler


@pytest.mark.parametrize("policy", ["fifo", "priority", "easy_backfill", "conservative_backfill", "gang", "affinity"])
def test_one_at_the_limit_does_not_hold_up_another_and_goes_on_when_its_first_ends(policy: str) -> None:
    scheduler = limited(Scheduler(cluster(1), policy), ann=2)
    for id in ("a1", "a2", "a3"):
        scheduler.submit(job(id), 0.0)
    scheduler.submit(job("b1", tenant="bob"), 0.0)
    assert sorted(started(scheduler.schedule(0.0, 10))) == ["a1", "a2", "b1"]
    assert scheduler.position("a3") is None and scheduler.explain("a3", 0.0)["stands_aside"]
    assert scheduler.schedule(1.0, 10) == [] and scheduler.next_wakeup in (None, 300.0)
    scheduler.finished("b1", 1.0)
    assert started(scheduler.schedule(1.0, 10)) == []
    scheduler.finished("a1", 2.0)
    assert started(scheduler.schedule(2.0, 10)) == ["a3"]


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_one_at_the_limit_has_no_reservation(policy: str) -> None:
    scheduler = limited(Scheduler(cluster(1), policy), ann=4)
    scheduler.submit(job("running", 4, expected_s=100.0), 0.0)
    scheduler.schedule(0.0, 10)
    scheduler.submit(job("aside", 4, priority=9, expected_s=10.0, deadline=1e6), 0.0)
    scheduler.submit(job("b", 4, tenant="bob", expected_s=1e6), 0.0)
    assert "b" in started(scheduler.schedule(0.0, 10))
    assert "aside" in scheduler.waiting and not scheduler.planner.reservations


def test_a_reservation_is_given_up_when_its_tenant_uses_up_its_limit() -> None:
    scheduler = limited(Scheduler(cluster(1), "easy_backfill"), ann=6)
    scheduler.submit(job("other", 7, tenant="bob", expected_s=100.0), 0.0)
    assert started(scheduler.schedule(0.0, 10)) == ["other"]
    scheduler.submit(job("large", 6, expected_s=10.0), 1.0)
    scheduler.schedule(1.0, 10)
    assert list(scheduler.planner.reservations) == ["large"]
    scheduler.submit(job("first", 1, priority=90, expected_s=1e6), 2.0)
    assert started(scheduler.schedule(2.0, 10)) == ["first"], "it ranks before the other"
    assert not scheduler.planner.reservations
    scheduler.submit(job("long", 1, tenant="carl"), 3.0)
    scheduler.finished("other", 4.0)
    assert started(scheduler.schedule(4.0, 10)) == ["long"], "nothing is kept for one that could not start"
    scheduler.finished("first", 5.0)
    assert started(scheduler.schedule(5.0, 10)) == ["large"]


def test_a_waiting_job_passes_the_smaller_ones_of_its_tenant_after_a_while() -> None:
    scheduler = limited(Scheduler(cluster(1), "easy_backfill"), ann=4)
    for number in range(4):
        scheduler.submit(job(f"small{number}"), 0.0)
    scheduler.schedule(0.0, 10)
    scheduler.submit(job("large", 4), 1.0)
    scheduler.submit(job("later"), 2.0)
    scheduler.finished("small0", 3.0)
    assert started(scheduler.schedule(3.0, 10)) == ["later"], "at first the smaller one goes"
    hold_after_s = find_policy("easy_backfill").hold_after_s
    now = 4.0 + hold_after_s
    scheduler.submit(job("last"), now)
    scheduler.finished("small1", now)
    assert started(scheduler.schedule(now, 10)) == []
    scheduler.submit(job("other", tenant="bob"), now)
    assert started(scheduler.schedule(now, 10)) == ["other"], "others are none of it"
    for id in ("small2", "small3", "later"):
        scheduler.finished(id, now + 1)
    assert started(scheduler.schedule(now + 1, 10)) == ["large"]
    assert scheduler.withdraw("last")


def test_when_the_one_that_was_saved_for_leaves_the_others_go_on() -> None:
    scheduler = limited(Scheduler(cluster(1), "easy_backfill"), ann=2)
    scheduler.submit(job("running"), 0.0)
    scheduler.submit(job("large", 2), 0.0)
    scheduler.schedule(0.0, 10)
    now = 1.0 + find_policy("easy_backfill").hold_after_s
    scheduler.submit(job("second", priority=60), now)
    assert started(scheduler.schedule(now, 10)) == ["second"]
    scheduler.finished("second", now)
    scheduler.submit(job("third"), now)
    assert started(scheduler.schedule(now, 10)) == []
    scheduler.withdraw("large")
    assert started(scheduler.schedule(now, 10)) == ["third"]


def test_limits_change_at_any_time_and_stop_nobody() -> None:
    scheduler = Scheduler(cluster(1), "easy_backfill")
    for number in range(4):
        scheduler.submit(job(f"a{number}", 2), 0.0)
    limited(scheduler, ann=2)
    assert started(scheduler.schedule(0.0, 10)) == ["a0"]
    limited(scheduler, 1.0, ann=6)
    assert started(scheduler.schedule(1.0, 10)) == ["a1", "a2"]
    limited(scheduler, 2.0, ann=1)
    assert len(scheduler.running) == 3 and scheduler.schedule(2.0, 10) == []
    scheduler.finished("a0", 3.0)
    assert scheduler.schedule(3.0, 10) == []
    scheduler.limit({}, gpus(1), 4.0)
    assert scheduler.schedule(4.0, 10) == [], "those of all others are hers now"
    scheduler.limit({"ann": NO_LIMIT}, gpus(1), 5.0)
    assert started(scheduler.schedule(5.0, 10)) == ["a3"]


def test_what_is_asked_for_as_nothing_needs_no_room() -> None:
    scheduler = limited(Scheduler(cluster(1), "easy_backfill"), ann=1)
    scheduler.submit(job("a"), 0.0)
    scheduler.schedule(0.0, 10)
    limited(scheduler, 1.0, ann=0)
    scheduler.submit(job("cpu", 0, cpu_milli=1000), 1.0)
    assert started(scheduler.schedule(1.0, 10)) == ["cpu"]


def test_what_others_started_counts_and_is_counted_once() -> None:
    engine = cluster(1)
    scheduler = limited(Scheduler(engine, "easy_backfill"), ann=2)
    placement = engine.place(id="there", gpu_count=2, gpu_milli=1000)
    assert placement is not None
    scheduler.adopt(job("there", 2), placement, 0.0)
    scheduler.adopt(job("there", 2), placement, 0.0)
    scheduler.submit(job("a"), 0.0)
    assert scheduler.schedule(0.0, 10) == []
    assert scheduler.tenant_limits.used("ann").gpu_milli == 2000
    scheduler.finished("there", 1.0)
    assert started(scheduler.schedule(1.0, 10)) == ["a"]
    scheduler.tenant_limits.hold("elsewhere", "ann", job("elsewhere").demand)
    scheduler.submit(job("b"), 2.0)
    assert scheduler.schedule(2.0, 10) == []
    scheduler.gave_back("elsewhere")
    scheduler.gave_back("elsewhere")
    assert started(scheduler.schedule(2.0, 10)) == ["b"]


def test_a_pass_does_not_look_at_each_job_of_a_tenant_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = limited(Scheduler(cluster(4), "easy_backfill"), ann=1)
    asked = 0
    has_capacity = scheduler.tenant_limits.has_capacity

    def counting(*arguments: Any) -> bool:
        nonlocal asked
        asked += 1
        return has_capacity(*arguments)

    for number in range(10_000):
        scheduler.submit(job(f"a{number}", priority=number % 50), 0.0)
    monkeypatch.setattr(scheduler.tenant_limits, "has_capacity", counting)
    assert len(started(scheduler.schedule(0.0, 100))) == 1
    assert asked <= 4
    for number in range(20):
        scheduler.submit(job(f"b{number}", tenant="bob"), 1.0)
    assert len(started(scheduler.schedule(1.0, 100))) == 20
    assert asked <= 100, "one look each at what was submitted and started, none at the 9,999"
    before = asked
    for number in range(20):
        scheduler.finished(f"b{number}", 2.0)
        assert scheduler.schedule(2.0, 100) == []
    assert asked == before, "what others free is no news for the one at the limit"
    (first,) = (id for id in scheduler.running if id.startswith("a"))
    scheduler.finished(first, 3.0)
    assert len(started(scheduler.schedule(3.0, 100))) == 1
    assert asked - before <= 8


def test_many_lines_of_one_tenant_are_each_looked_at_once_for_what_it_frees(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = limited(Scheduler(cluster(1), "priority"), ann=1)
    for number in range(500):
        scheduler.submit(job(f"a{number}", cpu_milli=number), 0.0)
    (first,) = started(scheduler.schedule(0.0, 10))
    looks: list[str] = []
    has_capacity = scheduler.tenant_limits.has_capacity

    def noting(tenant: str, *more: Any) -> bool:
        looks.append(tenant)
        return has_capacity(tenant, *more)

    monkeypatch.setattr(scheduler.tenant_limits, "has_capacity", noting)
    for _ in range(10):
        scheduler.schedule(1.0, 10)
    assert looks == []
    scheduler.finished(first, 2.0)
    assert len(started(scheduler.schedule(2.0, 10))) == 1
    assert len(looks) <= 2 * 500


needs = st.builds(
    lambda id, tenant, gpu_count, milli, cpu, gang: request(
        id, tenant=tenant, gpu_count=gpu_count, gpu_milli=milli, cpu_milli=cpu, gang=gang, gpu_memory_mib=7
    ),
    st.integers(0, 8).map(str),
    st.sampled_from(["", "ann", "bob"]),
    st.integers(0, 3),
    st.sampled_from([1, 500, 1000]),
    st.sampled_from([0, 10]),
    st.integers(1, 3),
)


@given(st.lists(st.tuples(st.booleans(), needs), max_size=40))
def test_use_is_the_sum_of_what_is_held(steps: list[tuple[bool, Request]]) -> None:
    tenant_limits = TenantLimits()
    held: dict[str, Request] = {}
    for holds, each in steps:
        if holds:
            tenant_limits.hold(each.id, each.tenant, each.demand)
            held[each.id] = each
        else:
            before = held.pop(each.id, None)
            assert tenant_limits.free(each.id) == (before.tenant if before else "")
        for tenant in ("ann", "bob"):
            amounts = [amounts_of(each.demand) for each in held.values() if each.tenant == tenant]
            assert tenant_limits.used(tenant) == Amounts(*(sum(each[n] for each in amounts) for n in range(4)))
            assert tenant_limits.used(tenant).gpu_milli == sum(
                each.demand.total_gpu_milli for each in held.values() if each.tenant == tenant
            )
    assert tenant_limits.used("") == Amounts(0, 0, 0, 0)


steps = st.one_of(
    st.tuples(
        st.just("submit"),
        st.sampled_from(["ann", "bob", "carl"]),
        st.sampled_from([1, 2, 4, 8]),
        st.sampled_from([10, 50, 90]),
        st.sampled_from([None, 5.0, 500.0]),
    ),
    st.tuples(st.just("finish"), st.integers(0, 20)),
    st.tuples(st.just("withdraw"), st.integers(0, 20)),
    st.tuples(st.just("limit"), st.sampled_from(["ann", "bob", "*"]), st.sampled_from([0, 1, 3, 8, None])),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 50.0, 700.0])),
)


@settings(max_examples=150, deadline=None)
@given(
    policy=st.sampled_from(["fifo", "priority", "easy_backfill", "conservative_backfill", "gang"]),
    history=st.lists(steps, max_size=60),
)
def test_nobody_goes_over_and_nobody_is_forgotten(policy: str, history: list[tuple[Any, ...]]) -> None:
    scheduler, now, count = Scheduler(cluster(1), policy), 0.0, 0
    limits: dict[str, int | None] = {}

    def limit_of(tenant: str) -> int | None:
        return limits.get(tenant, limits.get("*"))

    def apply_limits() -> None:
        found: dict[str, Limits] = {
            name: (1000 * n if n is not None else None, None, None, None) for name, n in limits.items()
        }
        scheduler.limit(found, found.get("*"), now)

    def use(tenant: str) -> int:
        return sum(
            each.request.demand.gpu_count for each in scheduler.running.values() if each.request.tenant == tenant
        )

    def check(decisions: list[Decision]) -> None:
        grown = {each.request.tenant for each in decisions if isinstance(each, Start)}
        for tenant in grown:
            limit = limit_of(tenant)
            assert limit is None or use(tenant) <= limit
        for each in scheduler.waiting.values():
            assert not (each.queue is not None and each.queue.held and each.reservation is not None)

    for step, *arguments in history:
        now += 0.1
        if step == "submit":
            tenant, wanted, priority, expected_s = arguments
            count += 1
            scheduler.submit(job(f"j{count}", wanted, tenant, priority=priority, expected_s=expected_s), now)
        elif step == "finish" and scheduler.running:
            scheduler.finished(sorted(scheduler.running)[arguments[0] % len(scheduler.running)], now)
        elif step == "withdraw" and scheduler.waiting:
            scheduler.withdraw(sorted(scheduler.waiting)[arguments[0] % len(scheduler.waiting)])
        elif step == "limit":
            limits[arguments[0]] = arguments[1]
            apply_limits()
        elif step == "wait":
            now += arguments[0]
        check(scheduler.schedule(now, 8))
    # What waits now and is within a limit of its tenant is served in the end, without news from outside.
    for tenant in ("ann", "bob", "*"):
        limits[tenant] = 8
    apply_limits()
    for _ in range(4 * (count + 1)):
        now += 1000.0
        check(scheduler.schedule(now, 8))
        for id in sorted(scheduler.running)[:1]:
            scheduler.finished(id, now)
    assert not scheduler.waiting and not scheduler.running
    assert not list(scheduler._queues) and not len(scheduler._queues)
