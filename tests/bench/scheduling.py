"""Queues: the kernels beside heapq or their twins, what a pass costs with much waiting, and whole traces."""

from __future__ import annotations

import gc
import heapq
import random
import time
from collections.abc import Callable, Iterator

from actorgrid.actors.scheduling.fair_share import NodeSize, TenantTerms
from actorgrid.actors.scheduling.request import Request
from actorgrid.actors.scheduling.scheduler import Scheduler
from actorgrid.hotpath import COMPILED, Forecast, PlacementEngine, PriorityBitmap, TimerWheel
from actorgrid.hotpath.capacity import GangNeeds
from actorgrid.hotpath.reference.forecast import Forecast as PlainForecast
from actorgrid.replay.catalogue import find, nodes_of, tasks_of
from actorgrid.replay.runs import Setup, prepare
from actorgrid.replay.runs import replay as run_all
from actorgrid.replay.workload import as_gangs, with_load
from tests.scheduling.cluster import cluster, request, simulate
from tests.scheduling.sharing import random_instance, shares_broken

from .figures import Figure, Skipped, latency, registry

ITEMS = 100_000
SPAN_MS = 300_000
LEVELS = 128
LOAD = 0.9
NODES = 1553  # of 8 GPUs: 12,424
RESERVATIONS = 256
TENANTS = 1000
INSTANCES = 10_000
QUESTIONS = 200
CHRONUS_S = 180.0
"""Seconds for all 30,940 jobs of Chronus: must."""


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) / ITEMS * 1e9


def _wheel(ticks: list[int]) -> None:
    wheel = TimerWheel()
    handles = [wheel.add(tick, tick) for tick in ticks]
    for handle in handles[::2]:
        wheel.cancel(handle)
    for now in range(0, SPAN_MS + 1, 100):
        wheel.advance(now)


def _timer_heap(ticks: list[int]) -> None:
    heap: list[tuple[int, int]] = []
    cancelled = set()
    for number, tick in enumerate(ticks):
        heapq.heappush(heap, (tick, number))
    for number in range(0, len(ticks), 2):
        cancelled.add(number)
    for now in range(0, SPAN_MS + 1, 100):
        while heap and heap[0][0] <= now:
            _, number = heapq.heappop(heap)
            cancelled.discard(number)


def _bitmap(levels: list[int]) -> None:
    line = PriorityBitmap(LEVELS)
    handles = [line.insert(level, number, number) for number, level in enumerate(levels)]
    for handle in handles[::2]:
        line.move(handle, max(0, levels[handle] - 1))
    while len(line):
        line.remove(line.first())  # the item is its handle: nothing was taken out before


def _level_heap(levels: list[int]) -> None:
    heap: list[tuple[int, int]] = []
    current = dict(enumerate(levels))
    for number, level in enumerate(levels):
        heapq.heappush(heap, (level, number))
    for number in range(0, len(levels), 2):
        current[number] = max(0, levels[number] - 1)
        heapq.heappush(heap, (current[number], number))
    while heap:
        level, number = heapq.heappop(heap)
        if current.get(number) == level:
            del current[number]


@registry.add("queue_kernels")
def queue_kernels(runs: int) -> Iterator[Figure]:
    """100,000 items put in, half of them cancelled or moved, all taken out: nanoseconds an item."""
    if not COMPILED:
        raise Skipped("the kernels were not compiled")
    cases: list[tuple[str, Callable[[list[int]], None], int]] = [
        ("timer wheel, add + half cancelled + due", _wheel, SPAN_MS),
        ("the same with heapq", _timer_heap, SPAN_MS),
        ("priority bitmap, insert + half moved + taken", _bitmap, LEVELS),
        ("the same with heapq", _level_heap, LEVELS),
    ]
    for name, work, below in cases:
        samples = []
        for run in range(runs):
            dice = random.Random(run)
            numbers = [dice.randrange(below) for _ in range(ITEMS)]
            samples.append(_timed(lambda work=work, numbers=numbers: work(numbers)))  # type: ignore[misc]
        yield Figure(name, "ns/item", samples, higher_is_better=False)


@registry.add("queue_passes")
def queue_passes(runs: int) -> Iterator[Figure]:
    """12,424 GPUs in use and 100,000 jobs waiting: what one more job, or one that ends, costs."""
    submitted, ended = [], []
    for run in range(runs):
        dice = random.Random(run)
        scheduler = Scheduler(cluster(NODES), "easy_backfill", queue_max=2 * ITEMS)
        running: list[str] = []
        for number in range(ITEMS):
            scheduler.submit(_job(f"j{number}", dice), 0.0)
        while decisions := scheduler.schedule(0.0, 10_000):
            running += [each.request.id for each in decisions if hasattr(each, "request")]
        submits, ends = [], []
        for number in range(200):
            now = 1.0 + number / 10
            request = _job(f"k{number}", dice)
            started = time.perf_counter()
            scheduler.submit(request, now)
            scheduler.schedule(now, 128)
            submits.append(time.perf_counter() - started)
            victim = running.pop(dice.randrange(len(running)))
            started = time.perf_counter()
            scheduler.finished(victim, now)
            scheduler.schedule(now, 128)
            ends.append(time.perf_counter() - started)
        submitted.append(submits)
        ended.append(ends)
    yield latency("submit + pass, 100,000 waiting", submitted, "µs", 1e6)
    yield latency("end + pass, 100,000 waiting", ended, "µs", 1e6)


def _job(id: str, dice: random.Random) -> Request:
    count = dice.choice((1, 1, 1, 2, 4, 8))
    gang = dice.choice((1, 1, 1, 2)) if count == 8 else 1
    return request(
        id,
        gpu_count=count,
        gang=gang,
        cpu_milli=2000 * count,
        priority=dice.choice((0, 50, 50, 90)),
        expected_s=dice.choice((600.0, 3600.0, 36_000.0, 360_000.0)),
    )


@registry.add("fair_share")
def fair_share(runs: int) -> Iterator[Figure]:
    """12,424 GPUs in use, 100,000 jobs of 1,000 tenants waiting: what the order of tenants adds to a start."""
    sizes = {f"n{number}": NodeSize(128_000, 512 * 1024, (("H100", 81_920),) * 8) for number in range(NODES)}
    terms = {f"t{number}": TenantTerms(weight=1.0 + number % 3) for number in range(TENANTS)}
    cases: list[tuple[str, dict[str, TenantTerms]]] = [("without", {}), ("with", terms)]
    for word, given in cases:
        samples = []
        for _ in range(runs):
            scheduler = Scheduler(cluster(NODES), "easy_backfill", queue_max=2 * ITEMS)
            scheduler.share(given, 0.0, nodes=sizes)
            for number in range(ITEMS):
                milli, tenant = (1000, 500, 250)[number // TENANTS % 3], f"ann@t{number % TENANTS}"
                scheduler.submit(request(f"j{number}", gpu_count=1, gpu_milli=milli, tenant=tenant), 0.0)
            gc.collect()  # what submitting left behind is not a start's to pay
            began, count = time.process_time(), 0
            while decisions := scheduler.schedule(0.0, 10_000):
                count += len(decisions)
            samples.append((time.process_time() - began) / count * 1e6)
        yield Figure(f"CPU of a start, {word} tenants", "us", samples, higher_is_better=False)


@registry.add("sharing")
def sharing(_runs: int) -> Iterator[Figure]:
    """10,000 random instances: sharing incentive, envy, Pareto, up to one largest job; how many broke one."""
    broken = sum(bool(shares_broken(random_instance(seed))) for seed in range(INSTANCES))
    yield Figure("instances that broke a promise", "", [float(broken)], higher_is_better=False, must=0.0)


@registry.add("forecast")
def forecast(runs: int) -> Iterator[Figure]:
    """12,424 GPUs in use, 256 reservations: when a gang of 64 GPUs can start, and who may start beside them."""
    if not COMPILED:
        raise Skipped("the kernels were not compiled")
    kinds: list[tuple[str, type[Forecast]]] = [("compiled", Forecast), ("plain Python", PlainForecast)]
    for kind, make in kinds:
        starts, besides = [], []
        for run in range(runs):
            dice = random.Random(run)
            known = make(cluster(NODES).nodes())
            whole, one, gang = (
                GangNeeds({"gpu_count": count, "gang": size}) for count, size in ((8, 1), (1, 1), (8, 8))
            )
            for number in range(NODES):
                place = ((f"n{number}", tuple(range(8))),)
                known.begin(f"j{number}", whole, place, 0.0, dice.uniform(100.0, 100_000.0), number)
            for number in range(RESERVATIONS):
                found = known.earliest(f"r{number}", gang, 0.0, 3600.0)
                assert found is not None
                known.reserve(f"r{number}", gang, found[1], found[0], 3600.0)
            each_start, each_beside = [], []
            for number in range(QUESTIONS):
                started = time.perf_counter()
                known.earliest("new", gang, number / 10, dice.choice((600.0, 3600.0, 36_000.0)))
                each_start.append(time.perf_counter() - started)
                started = time.perf_counter()
                known.beside("new", one, known.closed("new", None, 1e9), None, number / 10, 1e9)
                each_beside.append(time.perf_counter() - started)
            starts.append(each_start)
            besides.append(each_beside)
        yield latency(f"first start of a gang of 64, {kind}", starts, "µs", 1e6)
        yield latency(f"room beside 256 reservations, {kind}", besides, "µs", 1e6)


@registry.add("queue_chronus")
def queue_chronus(_runs: int) -> Iterator[Figure]:
    """All of Chronus, 30,940 jobs on 1,280 GPUs, with many reservations: how long a replay takes, and one pass."""
    trace = find("chronus")
    for queue in ("edf", "conservative_backfill"):
        setup = prepare(Setup(nodes_of(trace.cluster), tasks_of(trace), "queue", ("completion",), (queue,)))
        started = time.perf_counter()
        (run,) = run_all(setup)
        took = time.perf_counter() - started
        passes = run.latency_us["schedule"]
        yield Figure(f"chronus under {queue}", "s", [took], higher_is_better=False, must=CHRONUS_S)
        note = f"p99.9 {passes['p999'] / 1000:.1f} ms"
        yield Figure(f"a pass under {queue}", "µs", [passes["p50"]], False, p99=passes["p99"], note=note)


@registry.add("queue_jct")
def queue_jct(runs: int) -> Iterator[Figure]:
    """Mean job completion time under FIFO on the Philly traces at 90 % load, and how far others stay under it.

    The durations are Philly's own, estimates are exact; nothing is random, so one run says it all.
    """
    for name in ("philly-11cb48", "philly-ee9e8c"):
        trace = find(name)
        nodes = nodes_of(trace.cluster)
        capacity = sum(node.gpu_count for node in nodes) * 1000
        tasks = with_load(as_gangs(tasks_of(trace), nodes), capacity, LOAD)
        jobs = [
            (
                request(
                    task.id,
                    gpu_count=task.gpu_count,
                    gang=task.gang,
                    submitted_at=task.submit_s or 0.0,
                    expected_s=task.duration_s,
                ),
                task.duration_s or 0.0,
            )
            for task in tasks
        ]
        means = {}
        for policy in ("fifo", "priority", "easy_backfill", "las"):
            engine = PlacementEngine("best_fit")
            for node in nodes:
                engine.add_node(
                    node.name,
                    cpu_milli=0,
                    memory_mib=0,
                    gpu_count=node.gpu_count,
                    gpu_model="GPU",
                    gpu_memory_mib=0,
                )
            means[policy] = simulate(engine, policy, jobs).mean_jct()
        yield Figure(f"{name}: mean JCT, fifo", "h", [means["fifo"] / 3600], higher_is_better=False)
        for policy in ("priority", "easy_backfill", "las"):
            under = 100 * (1 - means[policy] / means["fifo"])
            bar = {"must": 25.0} if policy == "easy_backfill" else {}
            yield Figure(f"{name}: {policy} under fifo", "%", [under], higher_is_better=True, **bar)
