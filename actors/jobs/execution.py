"""Leads one graph on: which steps are released next, and what is decided about those that nobody has to run.

All that it knows is in the ledger (the graph's job, the records of its steps) and in the graph's files, so whoever
leads begins with these and goes on. What it decides is a proposal; what the ledger tells of changed steps settles it.
After a refusal everything is read again.

Steps are released ahead: a step whose producers are to be run by jobs that are known waits for those in the ledger, so
that nobody has to be asked when they end. Short calls are released together: one job runs some of them, one after the
other, and each has its own result. What runs together is alike, short by what was told or seen, and as many as the
cluster's CPUs leave for each.

A step that failed beside others runs again by itself, as does each of several whose process was lost with them: only
what it does alone counts against its retries (but for what it raised).

No I/O, clock or dice. Bounds: ``RELEASED_MAX`` jobs of a graph at a time, ``AHEAD_MAX`` of them ahead,
``TOGETHER_MAX`` steps in one job; of one proposal as in ``decisions.py``.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from actorgrid.actors.ledger.graph_records import StepRecord
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.actors.ledger.tables.graphs import NEW_STEP
from actorgrid.dag.allocators import Allocator
from actorgrid.dag.model import OnFailure, StepKind
from actorgrid.job_outcome import FINAL_STATES

from .decisions import Advance, ClusterCapacity, Finish, ReleasedJob, Releases
from .extensions import FurtherSteps
from .graph_end import FAILED, SETTLED, SUCCEEDED, begun_too_often, finish_of, without_running
from .graph_spec import GraphSpec
from .lost_results import LostResults
from .short_calls import SharedRest, ShortCalls
from .step_cache import NO_STEPS, StepCache
from .step_jobs import step_job
from .take_overs import TakeOvers

RELEASED_MAX = 1_000
AHEAD_MAX = 256
AHEAD_LOOKED_AT = 1_024
SHOWN_AT_ONCE = 256
"""Steps that could begin and are shown to an allocator."""
HELD_LOOKED_AT = 256
"""Steps that could begin and are held back by something, before no more are looked at."""
SETTLED_AT_ONCE = 10_000
TOGETHER_MAX = 64
AWAITED_JOBS_MAX = 32
"""A step that waits for more jobs than that is not released ahead."""
RETRY_FIRST_S, RETRY_MAX_S = 0.5, 60.0
RUNS_MAX = 200
"""How often a step is released, whatever the reason: with its process lost beside others, its inputs lost, its host."""

WAITING, READY, RELEASED = "waiting", "ready", "released"


class GraphExecution:
    """One graph. *job* is its record, *allocator* has been prepared for it, with this *urgency* (by step; ``None``: in
    the order of the graph). *now* is in seconds of any clock. *takes_s*: how long functions of this name have taken,
    which is kept there. *cache*: what of earlier graphs it may take over."""

    def __init__(
        self,
        spec: GraphSpec,
        job: JobRecord,
        allocator: Allocator,
        urgency: Sequence[float] | None,
        now: float,
        takes_s: dict[str, float] | None = None,
        cache: StepCache = NO_STEPS,
    ) -> None:
        self.spec = spec
        self.job = job
        self.allocator = allocator
        self.began_at = now
        self.held_by = ""
        """Why nothing is released at present, for people."""
        self._first_failed: int | None = None
        self._short = ShortCalls(spec, {} if takes_s is None else takes_s)
        graph = spec.graph
        count = len(graph)
        order = sorted(range(count), key=lambda n: (0.0 if urgency is None else -urgency[n], n))
        self._place = [0] * count
        for place, number in enumerate(order):
            self._place[number] = place
        self._state = [WAITING] * count
        self._record: dict[int, StepRecord] = {}
        self._open = [len(graph.producers[number]) for number in range(count)]
        self._ready: list[tuple[int, int]] = []  # a heap by place
        self._jobs: dict[str, ReleasedJob] = {}
        self._fresh: list[int] = []  # ready, and not looked at yet
        self._not_before: dict[int, float] = {}
        self._proposed: Advance | None = None
        self.further = FurtherSteps(each["parent"] for each in job["graph"]["extensions"])
        self._take_overs = TakeOvers(spec, cache)
        self._lost = LostResults(spec, self._state, self._record, self.further.open)
        self._withdraw: dict[str, None] = {}
        self._given_up: dict[int, None] = {}  # they failed beside others, and may not be tried again
        self._named_used = dict.fromkeys(graph.named, 0)
        for number in graph.running:
            if not self._open[number]:
                self._became_ready(number)

    # -- what the ledger says

    def load(self, records: Iterable[tuple[int, StepRecord]]) -> None:
        """Begin with what the ledger has of the steps."""
        self.changed(records, learn=False)

    def changed(self, records: Iterable[tuple[int, StepRecord]], *, learn: bool = True) -> None:
        """Follow steps that have changed."""
        for number, record in records:
            if number >= len(self._state):
                continue  # of steps that came later and are not read yet: the graph is read anew
            before, self._record[number] = self._record.get(number), record
            self._left_job(number, before)
            self._lost.told(number, record)
            self._given_up.pop(number, None)
            state = record["state"]
            gave = state == SUCCEEDED and "same_as" not in record and self.spec.step(number).extends
            self.further.step_is(number, gave=gave)
            if state == RELEASED:
                self._move(number, RELEASED)
                job = self._jobs.setdefault(record["job_id"], ReleasedJob([], False))
                if number not in job.steps:
                    job.steps.append(number)
                    self._use_named(number, 1)
            elif state in SETTLED:
                if learn and state == SUCCEEDED:
                    self._short.learn(number, record)
                self._move(number, state)
            elif state == FAILED:
                self._move(number, FAILED)
            elif state == "stumbled" and record["failures"] > self.spec.step(number).retries:
                self._given_up[number] = None
            else:
                self._move(number, WAITING)
                if state == "stumbled":
                    delay_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** (record["failures"] - 1))
                    self._not_before[number] = delay_s + (record["ended_at"] or 0.0)

    def placed(self, job_id: str, host: str, *, runs: bool = True) -> bool:
        """Take note where a job of the graph runs, or ran; whether something may begin beside it now."""
        job = self._jobs.get(job_id)
        if job is None:
            return False
        begins, job.host, job.runs = runs and not job.runs, host, runs
        return begins and any(self.spec.step(number).stream for number in job.steps)

    def inputs_lost(self, job_id: str, steps: Iterable[int]) -> None:
        """What these steps gave is nowhere any more, as the host of *job_id* found, which waits again."""
        self._lost.not_found(steps)
        if job_id in self._jobs:
            self._withdraw[job_id] = None
            self._take_overs.are_gone(each for each in self._jobs[job_id].steps if each in self._take_overs.put_back)

    def host_lost(self, host: str) -> None:
        """A host is lost, with what it had: what is still wanted of that is to be made again."""
        self._lost.host_lost(host)

    def host_is_there(self, host: str) -> None:
        """A host has come, or come back."""
        self._lost.host_is_there(host)

    def only_there(self, hosts: Container[str]) -> None:
        """Of all hosts that have something of the graph, or of what it may take over, only these are there."""
        had = {record["host"] for record in self._record.values()} | self._take_overs.hosts()
        for host in had:
            if host and host not in hosts:
                self.host_lost(host)

    @property
    def records(self) -> dict[int, StepRecord]:
        """The records of the steps that have one, by number; to be read only."""
        return self._record

    def carried_out(self) -> None:
        """What was proposed is in the ledger, and has been told of."""
        self._proposed = None

    # -- deciding

    def decide(self, capacity: ClusterCapacity, now: float) -> Advance | Finish | None:
        """What is to be proposed now; ``None``: nothing, or something is on its way."""
        if self._proposed is not None or self.job["state"] in FINAL_STATES:
            return None
        stopping = self.job["graph"]["stopping"] or self.job["cancel_requested"]
        if stopping:
            return None if self._jobs else self._end()
        further = self.further.take()
        if further is not None:
            return self._propose(further)
        given_up = [{"step": number, "state": FAILED} for number in self._given_up]
        failed = given_up or self._first_failed is not None
        if failed and self.spec.request.on_failure is OnFailure.FAIL_FAST:
            stop = Advance(settled=given_up, stop=bool(self._jobs))
            return self._propose(stop) if stop else self._end()
        again = self._lost.again()
        self._take_overs.are_gone(again)
        settled = given_up + [{"step": number, "state": WAITING} for number in again]
        own, cached = self._settle()
        settled += own
        withdrawn = [job_id for job_id in self._withdraw if job_id in self._jobs]
        self._withdraw.clear()
        releases = [] if withdrawn else self._release(capacity, now)
        found = Advance(releases, settled, withdrawn, cached=cached)
        if found:
            return self._propose(found)
        if self.further.open:
            return None
        if not self._jobs and not any(self._state[number] == READY for _, number in self._ready):
            return self._end()
        return None

    @property
    def is_held(self) -> bool:
        """Whether something could begin, and nothing of it runs."""
        return not self._jobs and self._proposed is None

    def next_wakeup(self, now: float) -> float | None:
        """When something may be released that has to wait until then."""
        ready = ((number, at) for number, at in self._not_before.items() if self._state[number] == READY)
        return min((at for number, at in ready if self._waits(number, now)), default=None)

    def _waits(self, number: int, now: float) -> bool:
        """Whether a step that failed is not to be tried yet; after a clock's jump, never longer than it may."""
        return 0.0 < self._not_before.get(number, 0.0) - now <= RETRY_MAX_S

    def _propose(self, found: Advance) -> Advance:
        self._proposed = found
        return found

    def _end(self) -> Finish:
        return finish_of(self.spec, self.job, self._state, self._record, self._first_failed)

    # -- without running them

    def _settle(self) -> tuple[list[dict[str, Any]], list[list[Any]]]:
        """Decide about ready steps whose condition does not hold, whose inputs were passed over, and merges; and which
        take over what an earlier graph gave."""
        found: list[dict[str, Any]] = []
        cached: list[list[Any]] = []
        while self._fresh and len(found) + len(cached) < SETTLED_AT_ONCE:
            number = self._fresh.pop()
            if self._state[number] != READY:
                continue
            decision = without_running(self.spec.graph, number, self._state, self._record)
            if decision is None and self._record.get(number, NEW_STEP)["run"] >= RUNS_MAX:
                id = self.spec.graph.steps[number].id
                decision = {"step": number, "state": FAILED, "error": begun_too_often(id, RUNS_MAX)}
            if decision is None:
                there = self._take_overs.find(number, self._record, self._lost.hosts)
                if there is not None:
                    cached.append([number, there.graph_id, there.step])
                    self._record[number] = {**there.record, "cached_from": [there.graph_id, there.step]}
                    self._move(number, SUCCEEDED)
                    continue
                heapq.heappush(self._ready, (self._place[number], number))
                continue
            found.append(decision)
            # As if the ledger had said so: what hangs on it is decided in the same entry.
            if decision["state"] == SUCCEEDED:
                self._record[number] = {**self._record[decision["same_as"]], "same_as": decision["same_as"]}
            self._move(number, decision["state"])
        return found, cached

    # -- releasing

    def _release(self, capacity: ClusterCapacity, now: float) -> list[dict[str, Any]]:
        self.held_by = ""
        free = self._most_jobs(capacity) - len(self._jobs)
        found = Releases()
        held: list[tuple[int, int]] = []
        claims = self._claims(capacity, now)
        while self._ready and free > 0 and not found.full and len(held) < HELD_LOOKED_AT:
            entry = heapq.heappop(self._ready)
            number = entry[1]
            if self._state[number] != READY:
                continue
            if self.spec.graph.in_parallel and len(self._jobs) >= self.spec.graph.in_parallel:
                self.held_by = f"{self.spec.graph.in_parallel} steps may run at once"
                held.append(entry)
                break
            if claims is not None and number not in claims and self.allocator.holds_back:
                self.held_by = "the strategy holds steps back"
                held.append(entry)
                continue
            if why := self._held(number, now):
                self.held_by = why
                held.append(entry)
                continue
            hosts = self._bound_to(number, capacity)
            if hosts is None:
                self.held_by = "the host of what they are collocated with is not known yet"
                held.append(entry)
                continue
            steps = self._together(number, capacity, now)
            near = (claims or {}).get(number) or self.allocator.hint(number)
            found.add(self._job(steps, hosts, near if near in capacity.up else "", ahead=False))
            free -= 1
        for entry in held:
            heapq.heappush(self._ready, entry)
        if not self._ready:
            self._release_ahead(found, capacity, free, now)
        elif free <= 0:
            self.held_by = f"{len(self._jobs)} jobs of it wait or run; as these end, more are released"
        return found.jobs

    def _most_jobs(self, capacity: ClusterCapacity) -> int:
        """How many jobs of the graph may wait or run: few of short steps, so that many are ready when one ends and run
        together; and few while nobody knows whether they are short."""
        slots = max(1, capacity.slots)  # while no host is there, some wait in the queue, where people see why
        if not self._ready:
            return min(RELEASED_MAX, max(32, 4 * slots))
        number = self._ready[0][1]
        short = self._kind(number) is not None and self._short.expected_s(number) is not None
        if short or not self._short.is_known(number, self._record.get(number)):
            return min(RELEASED_MAX, 2 * slots)
        return min(RELEASED_MAX, max(32, 4 * slots))

    def _claims(self, capacity: ClusterCapacity, now: float) -> dict[int, str] | None:
        if capacity.claims is None or not self._ready:
            return None
        shown = [number for _, number in heapq.nsmallest(SHOWN_AT_ONCE, self._ready) if self._state[number] == READY]
        return capacity.claims(shown)

    def _held(self, number: int, now: float) -> str:
        """Why a step that could begin may not, beside room; empty: it may."""
        graph = self.spec.graph
        if self._waits(number, now):
            return "a step that failed waits before it is tried again"
        for name, amount in graph.steps[number].cost.named.items():
            if self._named_used[name] + amount > graph.named[name]:
                return f"the resource {name!r} is in use"
        return ""

    def _bound_to(self, number: int, capacity: ClusterCapacity) -> list[str] | None:
        """The only hosts that a step may have (empty: any); ``None`` while that is not known."""
        graph = self.spec.graph
        group = (number, *graph.together[number])
        node = next((graph.steps[each].node for each in group if graph.steps[each].node), "")
        if node:
            return [node]
        if len(group) == 1:
            return []
        for other in group[1:]:
            record = self._record.get(other)
            if record is None or self._state[other] not in (RELEASED, SUCCEEDED):
                continue
            host = record["host"] if self._state[other] == SUCCEEDED else self._jobs[record["job_id"]].host
            if not host:
                return None
            if host in capacity.up:
                return [host]
        hint = self.allocator.hint(min(group))
        return [hint] if hint in capacity.up else []

    def _job(self, steps: list[int], hosts: list[str], near: str, *, ahead: bool) -> dict[str, Any]:
        graph, lost = self.spec.graph, self._lost
        first = steps[0]
        own = set(steps)
        inputs: dict[int, None] = {}
        jobs: dict[str, None] = {}
        streams: dict[int, None] = {}
        for number in steps:
            takes_values = self.spec.step(number).kind is StepKind.FUNCTION  # commands take files alone
            for other in graph.taken[number]:
                if other not in own and (lost.has_value(other) if takes_values else lost.source(other).outputs):
                    inputs[other] = None
            for other in graph.producers[number]:
                if self._state[other] == RELEASED and other not in own:
                    if other in self.spec.streams_of(number):
                        streams[other] = None
                    else:
                        jobs[self._record[other]["job_id"]] = None
        runs = [(number, self._record.get(number, NEW_STEP)["run"] + 1) for number in steps]
        failures = self._record.get(first, NEW_STEP)["failures"]
        retries = max(0, self.spec.step(first).retries - failures) if len(steps) == 1 else 0
        made = step_job(
            self.spec,
            self.job,
            runs,
            inputs=list(inputs),
            depends_on=list(jobs),
            place=self._place[first],
            hosts=hosts,
            near=near,
            retries=retries,
            puts_back=self._take_overs.put_back.get(first),
            streams=list(streams),
        )
        job = self._jobs[made["job_id"]] = ReleasedJob(list(steps), ahead)
        for number in job.steps:
            self._move(number, RELEASED)
            self._use_named(number, 1)
            before = self._record.get(number, NEW_STEP)
            record: StepRecord = {**NEW_STEP, "state": RELEASED, "run": dict(runs)[number], "job_id": made["job_id"]}
            record["failures"] = before["failures"]
            if before.get("alone"):
                record["alone"] = True
            self._record[number] = record
        return made

    # -- several in one job

    def _together(self, number: int, capacity: ClusterCapacity, now: float) -> list[int]:
        """The steps that run in one job with *number*, which is the first of them."""
        steps = [number]
        key = self._kind(number)
        if key is None:
            return steps
        left = SharedRest()
        if not self._short.fits(number, left):
            return steps
        share = max(1, -(-len(self._ready) // max(1, capacity.slots)))
        at = number
        while len(steps) < TOGETHER_MAX:
            following = self._only_consumer(at, steps)
            if following is None or self._kind(following) != key or not self._short.fits(following, left):
                break
            steps.append(following)
            at = following
        if len(steps) > 1:
            return steps
        skipped: list[tuple[int, int]] = []
        while self._ready and len(steps) < min(TOGETHER_MAX, share) and len(skipped) < TOGETHER_MAX:
            entry = heapq.heappop(self._ready)
            other = entry[1]
            if self._state[other] != READY or other in steps:  # one that waited again has an entry of before, too
                continue
            if self._kind(other) != key or self._held(other, now) or not self._short.fits(other, left):
                skipped.append(entry)
                continue
            steps.append(other)
        for entry in skipped:
            heapq.heappush(self._ready, entry)
        return steps

    def _only_consumer(self, number: int, steps: list[int]) -> int | None:
        """The step that follows *number* alone, and waits for nothing else than it and what is settled."""
        graph = self.spec.graph
        if len(graph.consumers[number]) != 1:
            return None
        (following,) = graph.consumers[number]
        own = set(steps)
        if self._state[following] != WAITING or graph.steps[following].when or self._take_overs.may_be(following):
            return None
        if any(self._state[other] != SUCCEEDED and other not in own for other in graph.producers[following]):
            return None
        return following

    def _kind(self, number: int) -> tuple[Any, ...] | None:
        return self._short.kind_of(number, self._record.get(number))

    # -- ahead

    def _release_ahead(self, found: Releases, capacity: ClusterCapacity, most: int, now: float) -> None:
        """Release steps whose producers are to be run by jobs that are known, the most urgent first."""
        graph = self.spec.graph
        ahead = sum(job.ahead for job in self._jobs.values())
        most = min(most, min(AHEAD_MAX, max(16, 2 * capacity.slots)) - ahead)
        if len(self._jobs) >= 2 * capacity.slots and self._all_short():
            return  # what they give is soon there, and more then run together
        if most <= 0 or self.allocator.holds_back or graph.in_parallel or graph.named or capacity.claims is not None:
            return
        looked_at = set(islice(self._ahead(), AHEAD_LOOKED_AT))
        for number in sorted(looked_at, key=lambda number: self._place[number]):
            if most <= 0 or found.full:
                break
            if self._state[number] != WAITING or not self._may_be_ahead(number, now):
                continue
            hosts = self._bound_to(number, capacity)
            if hosts is None:
                continue
            near = self.allocator.hint(number)
            steps = self._together_ahead(number)
            found.add(self._job(steps, hosts, near if near in capacity.up else "", ahead=True))
            most -= 1

    def _all_short(self) -> bool:
        return all(
            self._short.expected_s(number) is not None for job in self._jobs.values() for number in job.steps[:1]
        )

    def _ahead(self) -> Iterator[int]:
        graph = self.spec.graph
        for job in list(self._jobs.values()):
            for number in job.steps:
                yield from graph.consumers[number][:AHEAD_MAX]

    def _may_be_ahead(self, number: int, now: float) -> bool:
        graph = self.spec.graph
        step = self.spec.step(number)
        if not step.kind.is_work or step.when or self._waits(number, now) or self._take_overs.may_be(number):
            return False
        jobs: set[str] = set()
        for other in graph.producers[number]:
            if self._state[other] == RELEASED:
                job_id = self._record[other]["job_id"]
                if other in self.spec.streams_of(number) and not (job_id in self._jobs and self._jobs[job_id].runs):
                    return False  # released now, it could have the place that the other one needs
                jobs.add(job_id)
            elif self._state[other] != SUCCEEDED:
                return False
        return 0 < len(jobs) <= AWAITED_JOBS_MAX

    def _together_ahead(self, number: int) -> list[int]:
        """A chain that goes on from *number*, as far as it is short."""
        key, left, steps = self._kind(number), SharedRest(), [number]
        if key is None or not self._short.fits(number, left):
            return steps
        while len(steps) < TOGETHER_MAX:
            following = self._only_consumer(steps[-1], steps)
            if following is None or self._kind(following) != key or not self._short.fits(following, left):
                break
            steps.append(following)
        return steps

    # -- states

    def _move(self, number: int, state: str) -> None:
        """Give a step another state, and those that wait for it what follows."""
        before = self._state[number]
        if state == WAITING and not self._open[number]:
            state = READY
        if before == state:
            return
        self._state[number] = state
        graph = self.spec.graph
        if (before in SETTLED) != (state in SETTLED):
            by = -1 if state in SETTLED else 1
            for consumer in graph.consumers[number]:
                self._open[consumer] += by
                if self._state[consumer] == WAITING and not self._open[consumer]:
                    self._became_ready(consumer)
                elif self._state[consumer] == READY and self._open[consumer]:
                    self._state[consumer] = WAITING
        if state == READY:
            self._fresh.append(number)
        if state == FAILED and before != FAILED and self._first_failed is None:
            self._first_failed = number

    def _became_ready(self, number: int) -> None:
        self._state[number] = READY
        self._fresh.append(number)

    def _left_job(self, number: int, before: StepRecord | None) -> None:
        """Take a step out of the job that was to run it, before its record says anew where it is."""
        if before is None or before["state"] != RELEASED:
            return
        job = self._jobs.get(before["job_id"])
        now = self._record[number]
        if job is None or (now["state"] == RELEASED and now["job_id"] == before["job_id"]):
            return
        if number in job.steps:
            job.steps.remove(number)
            self._use_named(number, -1)
        if not job.steps:
            del self._jobs[before["job_id"]]

    def _use_named(self, number: int, by: int) -> None:
        for name, amount in self.spec.graph.steps[number].cost.named.items():
            self._named_used[name] += by * amount

    # -- for people

    def counts(self) -> dict[str, int]:
        """How many steps that run are in which state; those that have not begun are ``waiting`` or ``ready``."""
        found: dict[str, int] = {}
        for number in self.spec.graph.running:
            found[self._state[number]] = found.get(self._state[number], 0) + 1
        return found
