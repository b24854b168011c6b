"""One run: a scenario, a seed, a kind of host; what came of it, and the line that replays it."""

from __future__ import annotations

import traceback
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from actorgrid.chaos.checkers.answers import ExactlyOnce, Freshness, Linearizability
from actorgrid.chaos.checkers.checker import Checker
from actorgrid.chaos.checkers.durability import Durability
from actorgrid.chaos.checkers.grants import Grants, RunningTogether
from actorgrid.chaos.checkers.jobs import LostJobs
from actorgrid.chaos.checkers.locks import LockAnswers, LockBeliefs, LockGrants
from actorgrid.chaos.checkers.raft import ElectionSafety, LogMatching, MembershipChanges, StateMachineSafety
from actorgrid.chaos.checkers.serving import ScaledByDemand, ServedRequests
from actorgrid.chaos.faults.fault import Injection
from actorgrid.chaos.workloads.workload import WorkloadClient
from actorgrid.errors import SafetyViolated

from .clock import MS, SECOND
from .cluster import Cluster
from .node import SimulatedHost
from .scenario import Scenario, find
from .world import World

RECOVERY_S = 60
"""Virtual seconds of calm within which the cluster must recover; it takes one or two."""
LOOK_US = 100 * MS
STEPS_MAX = 2_000_000


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    ``checker`` is empty when nothing was violated; ``strikes`` counts the faults of the plan.
    """

    scenario: str
    seed: int
    checker: str = ""
    what: str = ""
    fingerprint: str = ""
    virtual_s: float = 0.0
    steps: int = 0
    strikes: int = 0
    without: tuple[int, ...] = ()
    figures: dict[str, int] = field(default_factory=dict)
    trace: tuple[str, ...] = ()
    hostile: bool = False
    """Whether one member was in the wrong hands."""

    @property
    def held(self) -> bool:
        """Whether nothing was violated."""
        return not self.checker

    @property
    def replay(self) -> str:
        """The command line that plays the run again."""
        left_out = "".join(f" --without {number}" for number in self.without)
        added = " --hostile-learner" if self.hostile else ""
        return f"actorgrid chaos run {self.scenario} --seed {self.seed}{added}{left_out} --trace"


class Recovery(Checker):
    """Checks that the cluster comes to rest after the faults: one leader, members that agree, every call answered."""


def checkers() -> list[Checker]:
    """One checker of each kind, for one run."""
    return [
        ElectionSafety(),
        LogMatching(),
        StateMachineSafety(),
        MembershipChanges(),
        Durability(),
        Grants(),
        RunningTogether(),
        LostJobs(),
        Linearizability(),
        Freshness(),
        ExactlyOnce(),
        LockGrants(),
        LockAnswers(),
        LockBeliefs(),
        ServedRequests(),
        ScaledByDemand(),
    ]


def play(
    name: str,
    seed: int,
    node_class: type[SimulatedHost] = SimulatedHost,
    keep_trace: bool = False,
    without: Collection[int] = (),
    hostile: bool = False,
) -> RunResult:
    """Run the scenario of that name once. *without* leaves out strikes by their number in the plan; *hostile* adds a
    learner that is in the wrong hands.

    Raises BadRequest for an unknown scenario; whatever else goes wrong is the run's result.
    """
    run = _Run(find(name), seed, node_class, keep_trace, frozenset(without), hostile)
    checker = what = ""
    try:
        run.play()
    except SafetyViolated as violation:
        checker, what = str(violation.details.get("checker", "")), str(violation)
    except AssertionError as error:
        checker, what = "Assertion", _where(error)
    except Exception as error:  # noqa: BLE001 - the outermost loop of a run: a core that raises has failed it
        checker, what = type(error).__name__, _where(error)
    if checker:
        run.world.trace.add("checker", f"{checker}: {what}")
    return RunResult(
        name,
        seed,
        checker,
        what,
        run.world.fingerprint,
        run.world.now_us / SECOND,
        run.steps,
        len(run.plan),
        tuple(sorted(without)),
        run.figures(),
        tuple(run.world.trace.lines()),
        hostile,
    )


def _where(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error} (in {frame.name}, {frame.filename.rpartition('/')[2]} line {frame.lineno})"


class _Run:
    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        node_class: type[SimulatedHost],
        keep_trace: bool,
        without: frozenset[int],
        hostile: bool,
    ) -> None:
        self.steps = 0
        self._without = without
        self.world = World(seed, scenario.timing, checkers(), keep_trace)
        rng = self.world.rng("scenario")
        self._until_us = int(scenario.seconds * SECOND)
        self.cluster = Cluster(self.world, node_class, rng.choice(scenario.voters), scenario.learners, hostile)
        faults = [fault for fault in scenario.faults if not scenario.swarm or rng.random() < 0.5]
        self.plan = sorted(
            (
                injection
                for number, fault in enumerate(faults)
                for injection in fault.plan(seed, self.world.rng(f"{fault.name}{number}"), self._until_us)
            ),
            key=lambda injection: injection.at_us,
        )
        self.clients: list[WorkloadClient] = []
        self._workloads = scenario.workloads()

    def play(self) -> None:
        """Clients and faults, then calm until all is at rest. Raises SafetyViolated."""
        clock = self.world.clock
        for workload in self._workloads:
            self.clients += workload.begin(self.cluster)
        for number, injection in enumerate(self.plan):
            if number not in self._without:
                clock.after(injection.at_us, partial(self._strike, number, injection))
        self._run_until(self._until_us)
        for client in self.clients:
            client.stopped = True
        self.cluster.calm()
        end_us = clock.now_us + RECOVERY_S * SECOND
        while True:
            self._run_until(clock.now_us + LOOK_US)
            amiss = self._amiss()
            if not amiss:
                break
            if clock.now_us > end_us:
                Recovery().fail(f"not recovered after {RECOVERY_S} s of calm", found=amiss)
        states = {node.id: node.ledger for node in self.cluster.members()}
        digests = {id: state.digest() for id, state in states.items()}
        first = next(iter(digests.values()))
        if any(digest != first for digest in digests.values()):
            Recovery().fail("members at rest have different states", found=f"{digests}")
        self.world.note(repr(first).encode())
        self.world.tell(lambda checker: checker.finish(states, clock.now_us))

    def _run_until(self, when_us: int) -> None:
        reached: list[bool] = []
        self.world.clock.after(when_us - self.world.now_us, lambda: reached.append(True))
        while not reached:
            self.steps += 1
            if self.steps > STEPS_MAX:
                Recovery().fail(f"more than {STEPS_MAX} events in one run")
            self.world.clock.step()

    def _strike(self, number: int, injection: Injection) -> None:
        said = injection.strike(self.cluster, injection.rng)
        if said:
            self.world.trace.add("fault", f"#{number} {injection.fault}: {said}")

    def _amiss(self) -> str:
        busy = next((client.name for client in self.clients if not client.idle), "")
        return f"{busy} waits for an answer" if busy else self.cluster.unrecovered()

    def figures(self) -> dict[str, int]:
        """Figures of how much happened in the run."""
        nodes = self.cluster.nodes.values()
        return {
            "hosts": len(nodes),
            "boots": sum(node.boots for node in nodes),
            "applied": max((node.ledger.index for node in nodes if node.boots), default=0),
            "term": max(node.term for node in nodes),
            "carried": self.world.network.carried,
            "lost": self.world.network.lost,
            "refused": sum(node.refused_in_all for node in nodes),
            "jobs": sum(
                max((node.ledger.counts for node in nodes if node.boots), key=lambda c: sum(c.values())).values()
            ),
        }
