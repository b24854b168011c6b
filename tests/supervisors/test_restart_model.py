"""The decision core against a model, and held to its promises by children that do what they like."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from actorgrid.supervisors.child import ChildSpec, SupervisorFlags
from actorgrid.supervisors.instructions import Instruction, KillProcess, StartProcess, Stopping, StopProcess
from actorgrid.supervisors.intensity import Intensity
from tests.supervisors.stage import CRASH, KILLED, NORMAL, Stage
from tests.supervisors.supervisor_model import Model

STRATEGIES = ("one_for_one", "one_for_all", "rest_for_one", "simple_one_for_one")
IDS = "abcdefg"


@st.composite
def flags_and_specs(draw: st.DrawFn) -> tuple[SupervisorFlags, list[ChildSpec]]:
    strategy: Any = draw(st.sampled_from(STRATEGIES))
    auto_shutdown: Any = draw(st.sampled_from(["never", "never", "any_significant", "all_significant"]))
    flags = SupervisorFlags(strategy, draw(st.integers(0, 5)), draw(st.sampled_from([0.5, 5.0, 60.0])), auto_shutdown)
    count = 1 if flags.simple else draw(st.integers(0, 5))
    return flags, [draw(specs(IDS[n], auto_shutdown != "never")) for n in range(count)]


def specs(child_id: str, may_be_significant: bool) -> st.SearchStrategy[ChildSpec]:
    def make(restart: Any, shutdown: Any, significant: bool) -> ChildSpec:
        significant = significant and may_be_significant and restart != "permanent"
        return ChildSpec(child_id, "m:C", restart, shutdown, significant=significant)

    restarts = st.sampled_from(["permanent", "transient", "temporary"])
    return st.builds(make, restarts, st.sampled_from([0, 1.0, "brutal_kill", "infinity"]), st.booleans())


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 4.0])), st.integers(0, 4), st.sampled_from([0.5, 1.0, 3.0]))
def test_a_restart_is_too_many_exactly_when_the_period_before_it_holds_more_than_the_intensity(
    gaps: list[float], intensity: int, period_s: float
) -> None:
    window, now_s = Intensity(intensity, period_s), 0.0
    restarts: list[float] = []
    for gap in gaps:
        now_s += gap
        restarts.append(now_s)
        assert window.allows(now_s) == (sum(now_s - at <= period_s for at in restarts) <= intensity)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["exit", "exit", "exit", "fail", "terminate", "restart", "delete", "start", "wait"]),
        st.integers(0, 9),
        st.booleans(),
        st.sampled_from([0.0, 0.3, 3.0, 50.0]),
    ),
    max_size=25,
)


@settings(max_examples=400, deadline=None)
@given(flags_and_specs(), st.dictionaries(st.sampled_from(IDS), st.integers(0, 1), max_size=2), EVENTS)
def test_once_quiet_the_same_children_live_as_in_the_model(
    made: tuple[SupervisorFlags, list[ChildSpec]], failing: dict[str, int], events: list[tuple[str, int, bool, float]]
) -> None:
    flags, children = made
    stage = Stage(
        *children,
        strategy=flags.strategy,
        intensity=flags.intensity,
        period_s=flags.period_s,
        auto_shutdown=flags.auto_shutdown,
    )
    model = Model(flags, children, dict(failing))
    stage.failing = dict(failing)
    stage.start()
    model.start()
    for what, pick, normal, seconds in events:
        agree(stage, model)
        if model.over:
            return
        run(stage, model, what, pick, normal, seconds)
        while "restarting" in stage.states().values() and stage.exit is None:
            stage.advance(min(stage.timers.values()) - stage.now_s)
        # Theirs is the sum of the pauses, ours their sum on the clock: equal but for the last bits.
        assert abs(stage.now_s - model.now_s) < 1e-6
        stage.now_s = model.now_s
    agree(stage, model)
    stage.shutdown()
    assert stage.exit is not None and not stage.processes


def run(stage: Stage, model: Model, what: str, pick: int, normal: bool, seconds: float) -> None:
    names = [*model.known(), "g"]
    name = names[pick % len(names)]
    if what == "exit" and model.live():
        name = model.live()[pick % len(model.live())]
        model.exits(name, normal)
        stage.dies(name, NORMAL if normal else CRASH)
    elif what == "fail":
        stage.failing[name] = model.failing[name] = pick % 4
    elif what == "start" and normal and not model.simple:
        child = ChildSpec(name, "m:C", "transient" if pick % 2 else "temporary")
        assert stage.answer("start_child", child) == model.start_child(child)
    elif what == "start":
        assert stage.answer("start_dynamic", ()) == model.start_dynamic()
    elif what == "wait":
        model.now_s += seconds
        stage.advance(seconds)
    elif what in ("terminate", "restart", "delete"):
        assert stage.answer(f"{what}_child", name) == getattr(model, f"{what}_child")(name)


def agree(stage: Stage, model: Model) -> None:
    if model.over:
        assert stage.exit is not None and not stage.processes
        assert (stage.exit.reason.error is None) == (model.over == "auto_shutdown")
        return
    assert stage.exit is None and stage.core.phase == "running"
    assert stage.live() == model.live()
    assert list(stage.states()) == model.known()
    assert sorted(stage.processes) == sorted(model.live())


# -- children that do what they like


class Watched(Stage):
    """Nothing happens by itself; each start and stop is held to the rules that hold at any moment."""

    def __init__(self, flags: SupervisorFlags, children: list[ChildSpec]) -> None:
        super().__init__(
            *children,
            strategy=flags.strategy,
            intensity=flags.intensity,
            period_s=flags.period_s,
            auto_shutdown=flags.auto_shutdown,
        )
        self.automatic = False
        self.flags = flags
        self.order = [child.id for child in children]
        self.started_temporary: set[tuple[str, int | None]] = (
            set()
        )  # with the request; none: the supervisor's own start
        self.restarts_at: list[float] = []
        self.was_down: set[str] = set()  # transient, ended in order by itself
        self.asked_to_stop: list[str] = []
        self.on_request: set[str] = set()  # are being stopped since before the end: theirs is a time of its own
        self.killed: set[str] = set()
        self.undying: set[str] = set()  # do not even end when they are killed, for long
        self.unmade: set[str] = set()  # had a start that got no process
        self.requested: set[str] = set()
        self.counted = flags.strategy in ("one_for_one", "simple_one_for_one")

    def _obey(self, instruction: Instruction) -> None:
        if isinstance(instruction, StartProcess):
            self._may_start(instruction)
            self.on_request.discard(instruction.id)
        elif isinstance(instruction, StopProcess | KillProcess):
            assert instruction.id in self.processes or instruction.id in self.unmade
            if isinstance(instruction, KillProcess):
                self.killed.add(instruction.id)
            if self.stopping is None:
                self.on_request.add(instruction.id)
            elif instruction.id not in self.on_request and instruction.id not in self.asked_to_stop:
                self.asked_to_stop.append(instruction.id)
        elif isinstance(instruction, Stopping):
            self.order_at_end = [child.id for child in self.core.children()]
        super()._obey(instruction)

    def _may_start(self, start: StartProcess) -> None:
        if self.started is None:
            before = self.order[: self.order.index(start.id)] if not self.flags.simple else []
            waiting = [child.id for child in self.core.children() if child.state == "waiting"]
            assert not set(before) & set(waiting), "out of order"
        if start.spec.restart == "temporary":
            child = self.core.child(start.id)
            assert child is not None
            # Its spec goes with its process, so one more start of that id is a new child, and has a request of its own.
            # Counted by request: one that waited in the queue is carried out in the event that ends its namesake.
            key = start.id, child.start_request
            assert key not in self.started_temporary, "a temporary child is never started again"
            assert child.start_request is not None or self.started is None, "a temporary child is started unasked"
            self.started_temporary.add(key)
        if self.flags.strategy in ("one_for_one", "simple_one_for_one"):
            assert start.id not in self.was_down or start.id in self.requested
        self.was_down.discard(start.id)
        self.killed.discard(start.id)

    def child_ends(self, child_id: str, reason: Any) -> None:
        child = self.core.child(child_id)
        assert child is not None
        by_itself = child.state == "up"
        failed_restart = child.state == "starting" and child.start_request is None and self.started is not None
        if by_itself and child.spec.restart == "transient" and reason.is_normal:
            self.was_down.add(child_id)
        counts = failed_restart or (by_itself and child.spec.wants_restart(reason.is_normal))
        if counts and self.stopping is None and self.counted:
            self.restarts_at = [at for at in [*self.restarts_at, self.now_s] if self.now_s - at <= self.flags.period_s]
            too_many = len(self.restarts_at) > self.flags.intensity
            self.ends(child_id, reason)
            assert (self.stopping is not None and self.stopping.error is not None) == too_many or self.started is None
        else:
            self.ends(child_id, reason)
        if self.core.child(child_id) is None:
            self.was_down.discard(child_id)

    def calm_down(self) -> None:
        """All children behave from now on: whoever starts comes up, whoever was asked ends."""
        for _ in range(10_000):
            if self.exit is not None:
                return
            moves = sorted(self.processes)
            busy = False
            for child_id in moves:
                child = self.core.child(child_id)
                if child is None or child_id not in self.processes or child_id in self.undying & self.killed:
                    continue
                if child.state == "stopping" or child_id in self.killed or child.start_error is not None:
                    self.child_ends(child_id, KILLED if child_id in self.killed else NORMAL)
                    busy = True
                elif child.state == "starting":
                    self.up(child_id)
                    busy = True
            if not busy:
                if self.timers:
                    self.advance(min(self.timers.values()) - self.now_s)
                elif self.undying & self.killed & set(self.processes):
                    self.undying.clear()
                else:
                    return
        raise AssertionError("it never comes to rest")


CHAOS_WORDS = ["up"] * 4 + ["exit"] * 2 + ["wait"] * 2 + ["fail", "fail_lingering", "refuse", "undying"]
CHAOS_WORDS += ["start", "terminate", "restart", "delete", "shutdown"]
CHAOS = st.lists(
    st.tuples(st.sampled_from(CHAOS_WORDS), st.integers(0, 30), st.sampled_from([NORMAL, CRASH, KILLED])), max_size=60
)


ONE_FOR_ALL = SupervisorFlags("one_for_all", 0, 0.5, "never")
ONE_FOR_ONE = SupervisorFlags("one_for_one", 0, 0.5, "never")
SLOW_AND_QUICK = [
    ChildSpec("a", "m:C", shutdown=1.0),
    ChildSpec("b", "m:C", shutdown=0),
    ChildSpec("c", "m:C", shutdown=0),
]
UP_THEN_ONE_TERMINATED = [("up", 0, NORMAL), ("up", 0, NORMAL), ("up", 0, NORMAL), ("terminate", 0, NORMAL)]


@settings(max_examples=500, deadline=None)
@given(flags_and_specs(), CHAOS, st.booleans())
@example((ONE_FOR_ALL, []), [("start", 14, NORMAL), ("start", 14, NORMAL), ("exit", 0, NORMAL)], False)
@example((ONE_FOR_ONE, SLOW_AND_QUICK), [*UP_THEN_ONE_TERMINATED, ("shutdown", 0, NORMAL)], False)
def test_whatever_children_do_the_promises_hold(
    made: tuple[SupervisorFlags, list[ChildSpec]], chaos: list[tuple[str, int, Any]], ends_by_shutdown: bool
) -> None:
    flags, children = made
    stage = Watched(flags, children)
    stage.feed(stage.core.start(0.0))
    for what, pick, reason in chaos:
        if stage.exit is not None:
            break
        do(stage, what, pick, reason)
    stage.calm_down()
    if stage.exit is None:
        assert stage.core.phase == "running" and set(stage.replies) == stage.asked
        assert set(stage.states().values()) <= {"up", "down"} and sorted(stage.live()) == sorted(stage.processes)
        if ends_by_shutdown:
            stage.feed(stage.core.shutdown("the end"))
            stage.calm_down()
    if stage.exit is not None:
        assert not {child for child in stage.processes if not stage.core.child(child).is_stuck}  # type: ignore[union-attr]
        if not flags.simple:
            places = [stage.order_at_end.index(child_id) for child_id in stage.asked_to_stop]
            assert places == sorted(places, reverse=True), "stopped out of order"
        again = [
            stage.core.child_started("a", stage.now_s),
            stage.core.child_exited("nobody", CRASH, stage.now_s),
            stage.core.shutdown("again"),
        ]
        assert again == [[], [], []]


def do(stage: Watched, what: str, pick: int, reason: Any) -> None:
    starting = [name for name, state in stage.processes.items() if state == "starting"]
    living = list(stage.processes)
    names = [*stage.states(), "f"]
    name = names[pick % len(names)]
    if what == "up" and starting:
        child = stage.core.child(starting[pick % len(starting)])
        if child is not None and child.start_error is None:
            stage.up(child.id)
    elif what == "exit" and living:
        stage.child_ends(living[pick % len(living)], reason)
    elif what in ("fail", "fail_lingering") and starting:
        child_id = starting[pick % len(starting)]
        stage.start_fails(child_id, ends=False)
        if what == "fail":
            stage.child_ends(child_id, CRASH)
    elif what == "wait":
        stage.advance((0.05, 0.5, 1.0, 5.0, 11.0, 61.0)[pick % 6])
    elif what == "undying":
        stage.undying.add(name)
    elif what == "refuse":
        stage.refused[name], stage.counted = 1, False
        stage.unmade.add(name)
    elif what == "start" and stage.flags.simple:
        stage.ask("start_dynamic", (pick,))
    elif what == "start":
        stage.requested.add(name)
        stage.ask("start_child", ChildSpec(name, "m:C", ("permanent", "transient", "temporary")[pick % 3]))
    elif what in ("terminate", "restart", "delete"):
        if what == "restart":
            stage.requested.add(name)
        stage.ask(f"{what}_child", name)
    elif what == "shutdown" and pick % 5 == 0:
        stage.feed(stage.core.shutdown("asked"))


@given(flags_and_specs(), CHAOS)
@settings(max_examples=50, deadline=None)
def test_the_same_events_give_the_same_instructions(
    made: tuple[SupervisorFlags, list[ChildSpec]], chaos: list[tuple[str, int, Any]]
) -> None:
    records = []
    for _ in range(2):
        stage = Watched(*made)
        stage.feed(stage.core.start(0.0))
        for what, pick, reason in chaos:
            if stage.exit is None:
                do(stage, what, pick, reason)
        records.append(repr(stage.orders))
    assert records[0] == records[1]
