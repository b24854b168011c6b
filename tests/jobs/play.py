"""A graph led on by the real core over the real ledger, with a scheduler and hosts that only count: on virtual time."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from actorgrid.actors.jobs.decisions import Advance, ClusterCapacity, Finish
from actorgrid.actors.jobs.execution import GraphExecution
from actorgrid.actors.jobs.extensions import read_further_steps, refuse_too_many
from actorgrid.actors.jobs.graph_spec import GraphSpec, read_spec, spec_files, write_spec
from actorgrid.actors.jobs.step_cache import StepCache
from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.command import Command
from actorgrid.actors.ledger.field_checks import ABSENT
from actorgrid.actors.ledger.state import Ledger
from actorgrid.dag.allocators import find_allocator
from actorgrid.dag.hosts import ClusterTracker, HostCapacity
from actorgrid.dag.model import StepKind
from actorgrid.dag.requests import GraphRequest
from actorgrid.errors import InvalidGraph
from actorgrid.graph_extension import GraphExtension, write_extension
from tests.consensus.rig import host_record

DIGEST = "ab" * 32
SPEC_FILE = "cd" * 32
Outcome = Callable[["Play", int, int], Any]
"""Of a step's run: what it gives. An exception: it raises that; ``CRASH``: its process is lost."""
CRASH = object()


@dataclass
class Ran:
    """One run of a step by an attempt that was begun."""

    step: str
    host: str
    began: float
    ended: float
    ok: bool


@dataclass
class Play:
    """Graphs on *hosts* of so many slots each. ``gives`` says what a step gives, ``takes`` how long it takes."""

    request: GraphRequest
    hosts: int = 2
    slots: int = 2
    gives: Outcome = lambda _play, _step, _run: None
    takes: Callable[[int], float] = lambda _step: 1.0
    meanwhile: Callable[[Play], None] = lambda _play: None
    """What happens while a proposal is on its way to the ledger."""
    further: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What steps give to run behind them, by their ids."""
    seed: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    now: float = 1000.0
    ran: list[Ran] = field(default_factory=list)
    jobs_run: int = 0
    results_at: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    beside: dict[str, dict[int, str]] = field(default_factory=dict)
    """By attempt: the steps beside which it runs, and the attempt of each whose items it takes."""
    alive: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self._seq = 0
        self._term = 1
        self._news = False
        self._queued: dict[str, Any] = {}
        self._ending: list[tuple[float, int, str, str, list[int]]] = []
        self._busy: dict[str, int] = {}
        self._have_been_over: set[tuple[str, int]] = set()
        self._away: dict[str, dict[tuple[str, str], set[int]]] = {}  # what lost hosts have
        self._told: list[tuple[str, str, Any]] = []
        self.do(commands.NewTerm(1))
        for number in range(self.hosts):
            name = f"h{number}"
            record = host_record(name, gpus=0)
            self.do(commands.RegisterHost({**record, "cpu_milli": 1000 * self.slots, "memory_mib": 2**20}))
            self._busy[name], self.alive[name] = 0, True
        self.specs: dict[str, GraphSpec] = {}
        self.submit(self.request)

    def submit(self, request: GraphRequest, user_id: str = "ann") -> None:
        """Have another graph accepted, and go on with that."""
        self.request = request
        self.graph_id = request.graph_id
        spec_bytes = write_spec(self.request)
        self.spec: GraphSpec = read_spec([spec_bytes])
        self.specs[self.graph_id] = self.spec
        self.files = {SPEC_FILE: spec_bytes}
        self.do(
            commands.SubmitGraph(
                {
                    "job_id": self.graph_id,
                    "name": self.request.name,
                    "user_id": user_id,
                    "env": {},
                    "graph": {
                        "files": [SPEC_FILE, DIGEST],
                        "steps": len(self.request.steps),
                        "strategy": self.request.strategy,
                        "on_failure": self.request.on_failure.value,
                    },
                },
                cache=request.keeps_results or ABSENT,
            )
        )
        self.lead()

    # -- the ledger

    def do(self, command: Command) -> Any:
        self._seq += 1
        outcome = self.ledger.apply(self.ledger.index + 1, _at(command, self.now), "s", self._seq)
        self._told += outcome.changes
        for kind, identity, record in outcome.changes:
            if kind == "steps":
                over = (number for number, each in record if each["state"] in ("succeeded", "skipped"))
                self._have_been_over.update((identity, number) for number in over)
            if kind == "job" and record is not None and "step_of" in record:
                if record["state"] == "queued":
                    self._queued[identity] = record
                else:
                    self._queued.pop(identity, None)
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def lead(self) -> None:
        """A leader that knows nothing but the ledger and the file begins."""
        self._term += 1
        self.do(commands.NewTerm(self._term))
        self._told.clear()
        self.spec = read_spec([self.files[digest] for digest in spec_files(self.job["graph"])])
        hosts = [HostCapacity(name, 1000 * self.slots) for name in self._busy]
        self.allocator = find_allocator(self.request.strategy)
        urgency = self.allocator.prepare(self.spec.graph, ClusterTracker(self.spec.graph, hosts))
        cache = self.cache()
        self.execution = GraphExecution(self.spec, self.job, self.allocator, urgency, self.now, cache=cache)
        self.execution.load(list(self.ledger.steps.items(self.graph_id)))
        self.execution.only_there({id for id, host in self.ledger.hosts.items() if host["state"] != "lost"})
        for job_id, record in self.ledger.jobs.items():
            if record["attempts"] and "step_of" in record:
                self.execution.placed(job_id, record["attempts"][-1]["host"], runs=record["state"] != "queued")

    def cache(self) -> StepCache:
        """What may be taken over of earlier graphs of the same user, as the runner finds it."""
        found = StepCache()
        for graph_id in reversed(self.specs):
            if graph_id != self.graph_id and self.ledger.jobs[graph_id]["user_id"] == self.job["user_id"]:
                found.add(self.specs[graph_id], graph_id, dict(self.ledger.steps.items(graph_id)))
        kept: dict[str, set[str]] = {}
        for host, attempt_id in self.results_at:
            kept.setdefault(host, set()).add(attempt_id)
        found.keep_only(kept)
        return found

    @property
    def job(self) -> Any:
        return self.ledger.jobs[self.graph_id]

    @property
    def states(self) -> dict[str, str]:
        return {
            step.id: self.ledger.steps.get(self.graph_id, number)["state"]
            for number, step in enumerate(self.spec.graph.steps)
            if step.kind.runs
        }

    def _tell(self) -> None:
        told, self._told = self._told, []
        for kind, identity, record in told:
            if kind == "steps" and identity == self.graph_id:
                self.execution.changed(record)
            elif kind == "job" and identity == self.graph_id:
                self.execution.job = record
            elif kind == "job" and record is not None and "step_of" in record and record["attempts"]:
                last = record["attempts"][-1]
                if self.execution.placed(identity, last["host"], runs=record["state"] != "queued"):
                    self._news = True
                error = last["error"] or {}
                if record["state"] == "queued" and error.get("code") == "InputLost":
                    self.execution.inputs_lost(identity, error["details"]["steps"])

    def advance(self) -> bool:
        """What the leader does with what it has heard; whether it did anything."""
        done = False
        while True:
            self._tell()
            self._extend()
            up = frozenset(name for name, alive in self.alive.items() if alive)
            found = self.execution.decide(ClusterCapacity(self.slots * len(up), up), self.now)
            if found is None:
                return done
            done = True
            term = self._term
            if isinstance(found, Finish):
                self.do(commands.EndGraph(self.graph_id, self._term, found.state, found.error))
                self._tell()
                return True
            self.meanwhile(self)
            if self._term != term:
                continue  # whoever leads now decides by itself
            assert isinstance(found, Advance)
            self.do(
                commands.AdvanceGraph(
                    self.graph_id,
                    self._term,
                    found.releases,
                    found.settled,
                    found.withdrawn,
                    found.extensions,
                    found.stop,
                    cached=found.cached or ABSENT,
                )
            )
            self._tell()
            self.execution.carried_out()
            if found.extensions:
                self.lead()

    def _extend(self) -> None:
        """Look for further steps, as the runner does."""
        first, spec = len(self.spec.graph), self.spec
        looked_at, failed = [], []
        extensions: list[dict[str, Any]] = []
        for number in list(self.execution.further.open):
            if not self.is_kept(number):
                self.execution.inputs_lost("", [number])
                continue
            steps = self.further.get(spec.step(number).id)
            looked_at.append(number)
            data = b"" if steps is None else write_extension(GraphExtension(None, {"steps": steps}, b"calls"))
            found = read_further_steps(spec, number, lambda at, size, data=data: data[at : at + size], {}, [])  # type: ignore[misc]
            if found is not None:
                record = found.to_record(number, first)
                try:
                    refuse_too_many(self.job["graph"], extensions, record)
                except InvalidGraph as error:
                    failed.append({"step": number, "state": "failed", "error": error.to_dict()})
                    continue
                extensions.append(record)
                self.files[extensions[-1]["file"]] = found.files[0]
                spec, first = found.spec, first + found.steps
        if looked_at:
            self.execution.further.looked_at(looked_at, extensions, failed)

    # -- the scheduler and the hosts

    def grant(self) -> None:
        """Place what waits and may, by its order, near where it would rather be."""
        waiting = [
            job
            for job in self._queued.values()
            if not self.ledger._jobs.unmet(job["job_id"]) and job["not_before"] <= self.now
        ]
        waiting.sort(key=lambda job: (job.get("step_of") or {}).get("order", 0))
        for job in waiting:
            only = job["resources"].get("hosts")
            free = [h for h, busy in self._busy.items() if busy < self.slots and self.alive[h]]
            free = [h for h in free if not only or h in only]
            if not free:
                continue
            host = job["near"] if job.get("near") in free else free[0]
            number = (job["attempts"][-1]["number"] if job["attempts"] else 0) + 1
            token = self.do(commands.GrantAttempt(job["job_id"], number, host, 1, [], self._term))["token"]
            self._busy[host] += 1
            self._news = self._news or self.spec.step(job["step_of"]["steps"][0][0]).stream
            self._begin(job, f"{job['job_id']}.{number}", host, token)

    def _begin(self, job: Any, attempt_id: str, host: str, token: list[int]) -> None:
        beside = {number: self._run_of(number) for number in job["step_of"].get("streams", ())}
        beside = {number: run for number, run in beside.items() if run}
        gone = [number for number in job["step_of"]["inputs"] if number not in beside and not self.is_kept(number)]
        put_back = job["step_of"].get("puts_back")
        if put_back is not None:
            source = self.ledger.steps.get(*put_back)
            put_back = (source["host"], source["attempt_id"]) not in self.results_at
        if gone or put_back:
            details = {"steps": gone}
            error = {"code": "InputLost", "message": "gone", "asked": "", "found": "", "hint": "", "details": details}
            self._busy[host] -= 1
            self.do(commands.EndAttempt(attempt_id, token, "lost", charge=False, error=error, retry_at=self.now))
            return
        self.do(commands.StartAttempt(attempt_id, token))
        self.jobs_run += 1
        steps = [each[0] for each in job["step_of"]["steps"]]
        for place, step in enumerate(steps):
            for producer in self.spec.graph.producers[step]:
                state = self.ledger.steps.get(self.graph_id, producer)["state"]
                over = state in ("succeeded", "skipped") or producer in steps[:place] or producer in beside
                # What comes after it alone may begin while it is made again, for others.
                over |= (
                    producer not in self.spec.graph.taken[step] and (self.graph_id, producer) in self._have_been_over
                )
                assert over, (step, producer, state)
        self.beside[attempt_id] = beside
        took = sum(self.takes(number) for number in steps)
        self._ending.append((self.now + took, self.ledger.index, attempt_id, host, steps))
        heapq.heapify(self._ending)

    def _run_of(self, number: int) -> str:
        """The attempt that runs a step now; empty: none does."""
        record = self.ledger.steps.get(self.graph_id, number)
        job = self.ledger.jobs.get(record["job_id"]) if record["state"] == "released" else None
        runs = job is not None and job["state"] in ("placed", "running")
        return str(job["attempts"][-1]["attempt_id"]) if job is not None and runs else ""

    def _waits_for_items(self, attempt_id: str, at: float, host: str, steps: list[int]) -> bool:
        """Whether an attempt has taken items of what still runs, or of what is over without having succeeded, and so
        ends later, or as lost."""
        for number, run in self.beside.get(attempt_id, {}).items():
            record = self.ledger.steps.get(self.graph_id, number)
            if record["state"] == "succeeded" and record["attempt_id"] == run:
                continue
            if self._run_of(number) == run:
                heapq.heappush(self._ending, (at + 0.5, self.ledger.index, attempt_id, host, steps))
                return True
            token = self.ledger.jobs[attempt_id.rpartition(".")[0]]["attempts"][-1]["token"]
            error = {
                "code": "InputLost",
                "message": "x",
                "asked": "",
                "found": "",
                "hint": "",
                "details": {"steps": []},
            }
            self._busy[host] -= 1
            self.do(commands.EndAttempt(attempt_id, token, "lost", charge=False, error=error, retry_at=self.now))
            return True
        return False

    def is_kept(self, number: int) -> bool:
        """Whether what a step gave lies where its record says."""
        record = self.ledger.steps.get(self.graph_id, number)
        kept = self.results_at.get((record["host"], record["attempt_id"]))
        source = record.get("same_as", number)
        taken_over = "cached_from" in self.ledger.steps.get(self.graph_id, source)
        return kept is not None and (taken_over or "cached_from" in record or source in kept)

    def end_next(self) -> bool:
        """Let the next attempt end; ``False``: none runs."""
        if not self._ending:
            return False
        at, _, attempt_id, host, steps = heapq.heappop(self._ending)
        self.now = max(self.now, at)
        job_id, _, number = attempt_id.rpartition(".")
        job = self.ledger.jobs.get(job_id)
        attempt = job["attempts"][-1] if job is not None else None
        if attempt is None or str(attempt["number"]) != number or attempt["ended_at"] is not None:
            return True  # it was ended by others, with its host
        if job is not None and not job["cancel_requested"] and self._waits_for_items(attempt_id, at, host, steps):
            return True
        self._busy[host] -= 1
        token = attempt["token"]
        if job is not None and job["cancel_requested"]:
            self.do(commands.EndAttempt(attempt_id, token, "cancelled"))
            return True
        results: list[dict[str, Any]] = []
        told: dict[str, Any] = {}
        began = at - sum(map(self.takes, steps))
        for step in steps:
            run = next(run for each, run, *_ in job["step_of"]["steps"] if each == step)  # type: ignore[index]
            gave = self.gives(self, step, run)
            took = self.takes(step)
            if "puts_back" in job["step_of"]:  # type: ignore[index]
                source = self.ledger.steps.get(*job["step_of"]["puts_back"])  # type: ignore[index]
                told = {name: source[name] for name in ("word", "digest") if name in source}  # type: ignore[literal-required]
                results.append({"ok": True, "offset": 0, "size": 100, "took_s": took, **told})
                continue
            id = self.spec.graph.steps[step].id
            if gave is CRASH:
                self.ran.append(Ran(id, host, began, began + took, False))
                error = {"code": "TaskFailed", "message": "crash", "asked": "", "found": "", "hint": "", "details": {}}
                self.do(commands.EndAttempt(attempt_id, token, "failed", error=error, retry_at=self.now))
                return True
            ok = not isinstance(gave, Exception)
            self.ran.append(Ran(id, host, began, began + took, ok))
            began += took
            told = {"word": gave} if ok and isinstance(gave, bool | int | float | str) else {}
            if self.request.keeps_results:
                told["digest"] = hashlib.sha256(repr(gave).encode()).hexdigest()
            results.append({"ok": ok, "offset": 100 * len(results), "size": 100, "took_s": took, **told})
            if not ok:
                break
        self.results_at.setdefault((host, attempt_id), set()).update(
            step for step, result in zip(steps, results, strict=False) if result["ok"]
        )
        good = all(result["ok"] for result in results)
        is_call = self.spec.graph.steps[steps[0]].kind is StepKind.FUNCTION
        tells = "tells" in job["step_of"] or "outputs" in job  # type: ignore[index, operator]
        more = {"results": results} if is_call or tells else {}
        error = None
        if not good:
            error = {"code": "TaskFailed", "message": "raised", "asked": "", "found": "", "hint": "", "details": {}}
        outcome = "succeeded" if good else "failed"
        self.do(commands.EndAttempt(attempt_id, token, outcome, error=error, retry_at=self.now, **more))
        return True

    def lose_host(self, host: str) -> None:
        """A host is lost for good, with what ran there and what was kept there."""
        self.alive[host] = False
        held = [(id, a["token"]) for id, a in self.ledger.allocations.items() if a["host"] == host]
        seen = self.ledger.hosts[host].get("seen_index", 0)
        self.do(commands.LoseHost(host, 1, seen, self.now, [[id, token] for id, token in held], self._term))
        self._busy[host] = self.slots
        places = [place for place in self.results_at if place[0] == host]
        self._away[host] = {place: self.results_at.pop(place) for place in places}
        self._ending = [each for each in self._ending if each[3] != host]
        heapq.heapify(self._ending)
        self._tell()
        self.execution.host_lost(host)
        self._news = True

    def host_is_back(self, host: str) -> None:
        """A host that was lost is there again, with what it had kept."""
        self.do(commands.ConfirmHost(host, 1, self.ledger.hosts[host]["lost_at"]))
        self.alive[host], self._busy[host] = True, 0
        self.results_at.update(self._away.pop(host))
        self._tell()
        self.execution.host_is_there(host)

    def run(self, *, until: Callable[[], bool] = lambda: False, most: int = 100_000) -> str:
        """Play until the graph is over (or *until*); gives its state."""
        for _ in range(most):
            self.advance()
            if self.job["state"] not in ("running",) or until():
                return str(self.job["state"])
            self.grant()
            if self._news:
                self._news = False
            elif not self.end_next() and not self._told:
                wake = self.execution.next_wakeup(self.now)
                waits = [job["not_before"] for job in self._queued.values()]
                later = [at for at in (wake, *waits) if at is not None and at > self.now]
                assert later, f"nothing goes on: {self.execution.held_by} {self.states}"
                self.now = min(later)
        raise AssertionError("it does not end")

    def done(self) -> list[str]:
        return [each.step for each in self.ran if each.ok]


def _at(command: Command, now: float) -> dict[str, Any]:
    return {**command.to_plain(), "at": now}


def function(id: str, inputs: Sequence[Any] = (), **more: Any) -> dict[str, Any]:
    call = {"offset": 0, "size": 33}
    return {
        "id": id,
        "kind": "function",
        "function": more.pop("function", id),
        "call": call,
        "inputs": list(inputs),
        **more,
    }


def graph(*steps: dict[str, Any], **more: Any) -> GraphRequest:
    return GraphRequest.model_validate(
        {"graph_id": "g", "bundle": DIGEST, "python": "3.11", "steps": list(steps), **more}
    )
