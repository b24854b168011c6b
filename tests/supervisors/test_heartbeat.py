"""The pulse with real processes: what a supervisor learns of a child that runs, hangs, is stopped or crashes."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import inf
from time import monotonic
from typing import Any, NoReturn

import pytest

from actorgrid.errors import TooManyActors
from actorgrid.supervisors import heartbeat as pulse_module
from actorgrid.supervisors.heartbeat import HANDLER_NAMES_MAX, TRACEBACK_BYTES_MAX, Heartbeat, OwnHeartbeat, adopt
from actorgrid.supervisors.watchdog import Watchdog

Body = Callable[[OwnHeartbeat], None]
LIMIT_S = 20.0


class Family:
    """Forks children as a supervisor does, and buries them."""

    def __init__(self) -> None:
        self.pulses: list[Heartbeat] = []
        self.living: set[int] = set()

    def start(self, body: Body, heartbeat: Heartbeat | None = None) -> Heartbeat:
        heartbeat = heartbeat or self.make()
        pid = os.fork()
        if pid == 0:
            run(heartbeat.number, body)
        heartbeat.pid = pid
        self.living.add(pid)
        wait_until(lambda: heartbeat.read().state != "new", heartbeat)
        return heartbeat

    def make(self) -> Heartbeat:
        heartbeat = Heartbeat()
        self.pulses.append(heartbeat)
        return heartbeat

    def end(self, heartbeat: Heartbeat, number: int = 0) -> int:
        """Its exit status, after signal *number* if one is given."""
        assert heartbeat.pid is not None
        if number:
            os.kill(heartbeat.pid, number)
        _, status = os.waitpid(heartbeat.pid, 0)
        self.living.discard(heartbeat.pid)
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        for heartbeat in self.pulses:
            if heartbeat.pid in self.living:
                self.end(heartbeat, signal.SIGKILL)
            heartbeat.close()


@pytest.fixture
def family() -> Iterator[Family]:
    made = Family()
    yield made
    made.close()


def run(number: int, body: Body) -> NoReturn:
    status = 99
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        body(adopt(number))
        status = 0
    finally:
        os._exit(status)


def wait_until(condition: Callable[[], Any], heartbeat: Heartbeat) -> Any:
    end = monotonic() + LIMIT_S
    tick = threading.Event()
    while not (found := condition()):
        assert monotonic() < end, f"not reached: {heartbeat.read()}, {heartbeat.traceback()!r}"
        tick.wait(0.005)
    return found


def beat_on(own: OwnHeartbeat) -> None:
    own.running()
    tick = threading.Event()
    while True:
        own.beat()
        tick.wait(0.002)


def spin_in_python(own: OwnHeartbeat) -> None:
    own.running()
    own.handler_started(0.05, "Spin")
    while True:
        pass


def sleep_in_c_with_the_gil(own: OwnHeartbeat) -> None:
    own.handler_started(0.05, "Sleep")
    libc = ctypes.PyDLL(None)
    while True:
        libc.sleep(1000)


def segfault(own: OwnHeartbeat) -> None:
    own.running()
    ctypes.string_at(0)


def abort(own: OwnHeartbeat) -> None:
    own.running()
    os.abort()


def descriptors(pid: int | str) -> list[int]:
    """The files behind *pid*'s descriptors of pulses."""
    folder = f"/proc/{pid}/fd"
    found = []
    for name in os.listdir(folder):
        try:
            if "actorgrid-pulse" in os.readlink(f"{folder}/{name}"):
                found.append(os.stat(f"{folder}/{name}").st_ino)
        except FileNotFoundError:  # the one that listed the folder
            continue
    return sorted(found)


# -- what is read


def test_a_new_pulse_says_that_nobody_took_it(family: Family) -> None:
    heartbeat = family.make()
    assert heartbeat.read().state == "new"
    assert heartbeat.traceback() == ""
    assert not heartbeat.ask_traceback()


def test_a_child_tells_its_states_beats_and_handlers(family: Family) -> None:
    steps, done = os.pipe(), os.pipe()

    def body(own: OwnHeartbeat) -> None:
        def show() -> None:
            os.write(done[1], b".")
            os.read(steps[0], 1)

        show()
        own.running()
        own.beat()
        own.handler_started(5.0, "GetStatus")
        show()
        own.handler_ended()
        show()
        own.handler_started(None, "Prüfung")
        own.handler_started(inf, "Prüfung")
        show()
        own.stopping(7.5)
        own.handler_ended()
        show()
        own.stopping(None)
        show()

    before_s = monotonic()
    heartbeat = family.start(body)

    def next_reading() -> Any:
        os.read(done[0], 1)
        reading = heartbeat.read()
        os.write(steps[1], b".")
        return reading

    assert next_reading().state == "starting"
    busy = next_reading()
    assert (busy.state, busy.beats, busy.handled, busy.limit_s, busy.handler) == ("running", 1, 0, 5.0, "GetStatus")
    assert busy.started_s is not None and before_s <= busy.started_s <= monotonic()
    idle = next_reading()
    assert (idle.handled, idle.started_s, idle.limit_s, idle.handler) == (1, None, None, "")
    unlimited = next_reading()
    assert (unlimited.limit_s, unlimited.handler) == (inf, "Prüfung")
    stopping = next_reading()
    assert (stopping.state, stopping.limit_s, stopping.handler) == ("stopping", 7.5, "stop")
    assert stopping.started_s is not None
    assert next_reading().limit_s == inf
    assert family.end(heartbeat) == 0
    assert heartbeat.read().state == "stopping", "the dead are read as they died"
    for fd in (*steps, *done):
        os.close(fd)


def test_handlers_beyond_the_table_of_names_are_timed_without_a_name(family: Family) -> None:
    def body(own: OwnHeartbeat) -> None:
        for number in range(HANDLER_NAMES_MAX + 1):
            own.handler_started(1.0 + number, f"Kind{number}" + "x" * 100)
        own.handler_started(2.0, "Kind0" + "x" * 100)
        os.kill(os.getpid(), signal.SIGSTOP)
        own.handler_started(3.0, "one too many")

    heartbeat = family.start(body)
    assert heartbeat.pid is not None
    os.waitpid(heartbeat.pid, os.WUNTRACED)
    assert heartbeat.read().handler == "Kind0" + "x" * 59
    os.kill(heartbeat.pid, signal.SIGCONT)
    family.end(heartbeat)
    assert (heartbeat.read().handler, heartbeat.read().limit_s) == ("", 3.0)


def test_a_stopped_child_does_not_beat_and_cannot_answer(family: Family) -> None:
    frozen, clock = family.start(beat_on), family.start(beat_on)
    assert frozen.pid is not None
    wait_until(lambda: frozen.read().beats > 3, frozen)
    os.kill(frozen.pid, signal.SIGSTOP)
    os.waitpid(frozen.pid, os.WUNTRACED)
    beats = frozen.read().beats
    assert frozen.ask_traceback()
    since = clock.read().beats
    wait_until(lambda: clock.read().beats > since + 20, clock)
    assert frozen.read().beats == beats
    assert frozen.traceback() == ""
    assert family.end(frozen, signal.SIGKILL) == -signal.SIGKILL


def test_only_a_child_without_progress_is_asked_how_long_it_waited_for_a_cpu(family: Family) -> None:
    def body(own: OwnHeartbeat) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGSTOP)
            own.beat()

    heartbeat = family.start(body)
    assert heartbeat.pid is not None
    os.waitpid(heartbeat.pid, os.WUNTRACED)
    heartbeat.read()
    os.kill(heartbeat.pid, signal.SIGCONT)
    os.waitpid(heartbeat.pid, os.WUNTRACED)
    assert heartbeat.read().waited_s is None
    told = heartbeat.read().waited_s
    assert told == heartbeat.read().waited_s, "who is stopped does not wait for a CPU"
    os.kill(heartbeat.pid, signal.SIGCONT)
    family.end(heartbeat)
    heartbeat.read()
    assert heartbeat.read().waited_s is None, "the dead have no such figure"


def test_a_reader_beside_a_busy_writer_never_sees_a_handler_with_a_foreign_limit(family: Family) -> None:
    def body(own: OwnHeartbeat) -> None:
        own.running()
        while True:
            for limit_s, name in ((1.0, "One"), (2.0, "Two"), (inf, "Inf")):
                own.handler_started(limit_s, name)
                own.handler_ended()

    heartbeat = family.start(body)
    readings = [heartbeat.read() for _ in range(5000)]
    pairs = {(reading.limit_s, reading.handler) for reading in readings if reading.started_s is not None}
    assert pairs <= {(1.0, "One"), (2.0, "Two"), (inf, "Inf")}
    assert all(before.handled <= after.handled for before, after in pairwise(readings))


# -- tracebacks


@pytest.mark.parametrize(
    ("body", "word"), [(spin_in_python, "spin_in_python"), (sleep_in_c_with_the_gil, "with_the_gil")]
)
def test_a_hung_child_says_where_it_is(family: Family, body: Body, word: str) -> None:
    heartbeat = family.start(body)
    wait_until(lambda: heartbeat.read().started_s is not None, heartbeat)
    assert heartbeat.ask_traceback()
    wait_until(lambda: word in heartbeat.traceback(), heartbeat)
    assert family.end(heartbeat, signal.SIGKILL) == -signal.SIGKILL
    assert "most recent call first" in heartbeat.traceback()


def test_nobody_is_asked_before_it_can_answer(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeat = family.make()
    registered = faulthandler.register

    def register(number: int, **how: Any) -> None:
        # In the child: asked now, the signal would kill it.
        assert pulse_module._own is not None
        assert pulse_module._own._words[pulse_module._STATE] == pulse_module._STATES.index("new")
        registered(number, **how)

    monkeypatch.setattr(faulthandler, "register", register)
    family.start(lambda own: None, heartbeat)
    assert family.end(heartbeat) == 0


def test_asking_again_begins_a_new_text(family: Family) -> None:
    heartbeat = family.start(beat_on)
    for _ in range(2):
        assert heartbeat.ask_traceback()
        wait_until(lambda: "in start" in heartbeat.traceback(), heartbeat)
    family.end(heartbeat, signal.SIGKILL)
    assert heartbeat.traceback().count("in beat_on") == 1


@pytest.mark.parametrize(("body", "number"), [(segfault, signal.SIGSEGV), (abort, signal.SIGABRT)])
def test_a_crash_in_c_leaves_the_python_traceback_and_the_signal(family: Family, body: Any, number: int) -> None:
    heartbeat = family.start(body)
    assert family.end(heartbeat) == -number
    assert f"in {body.__name__}" in heartbeat.traceback()
    assert "Fatal Python error" in heartbeat.traceback()


def test_what_crashes_beside_an_actor_is_not_in_its_pulse(family: Family) -> None:
    def body(_: OwnHeartbeat) -> None:
        pid = os.fork()
        if pid == 0:
            ctypes.string_at(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGSEGV

    heartbeat = family.start(body)
    assert family.end(heartbeat) == 0
    assert heartbeat.traceback() == ""


def test_a_grandchild_crashes_into_its_own_pulse_although_its_parent_had_one(family: Family) -> None:
    def body(_: OwnHeartbeat) -> None:
        inner = Heartbeat()
        pid = os.fork()
        if pid == 0:
            # As a new actor process does it: faulthandler still believes that its handlers are in place.
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            run(inner.number, segfault)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGSEGV
        assert "in segfault" in inner.traceback()
        inner.close()

    heartbeat = family.start(body)
    assert family.end(heartbeat) == 0
    assert heartbeat.traceback() == ""


def test_a_text_that_does_not_fit_is_cut_off(family: Family) -> None:
    name = "deep_" + "x" * 400
    scope: dict[str, Any] = {}
    exec(f"def {name}(left, then):\n    {name}(left - 1, then) if left else then()", scope)

    def body(_: OwnHeartbeat) -> None:
        scope[name](99, lambda: ctypes.string_at(0))

    heartbeat = family.start(body)
    assert family.end(heartbeat) == -signal.SIGSEGV
    assert len(heartbeat.traceback()) == TRACEBACK_BYTES_MAX
    assert "string_at" in heartbeat.traceback(), "the innermost calls come first"


# -- what it costs


def test_children_hold_no_pulse_but_their_own(family: Family) -> None:
    pulses = [family.start(beat_on) for _ in range(3)]
    own = descriptors("self")
    assert len(own) == 3, "one descriptor each in the supervisor"
    held = [descriptors(heartbeat.pid) for heartbeat in pulses if heartbeat.pid]
    assert [len(set(files)) for files in held] == [1, 1, 1]
    assert [len(files) for files in held] == [2, 2, 2], "the file's and the mapping's"
    assert sorted(files[0] for files in held) == own


def test_a_supervisor_among_the_children_closes_its_own_in_its_children(family: Family) -> None:
    def body(own: OwnHeartbeat) -> None:
        inner = Heartbeat()
        pid = os.fork()
        if pid == 0:
            run(inner.number, lambda own: os._exit(0 if len(set(descriptors("self"))) == 1 else 1))
        assert os.waitpid(pid, 0)[1] == 0
        own.beat()
        inner.close()

    heartbeat = family.start(body)
    assert family.end(heartbeat) == 0
    assert heartbeat.read().beats == 1


def test_a_pulse_is_one_page_in_the_child_and_no_mapping_in_the_supervisor(family: Family) -> None:
    def body(own: OwnHeartbeat) -> None:
        own.running()
        with open("/proc/self/smaps") as file:
            lines = iter(file)
            found = [line for line in lines if "actorgrid-pulse" in line]
        assert len(found) == 1
        with open("/proc/self/smaps") as file:
            figures = file.read().partition(found[0])[2].split("VmFlags")[0]
        assert "Size:                  4 kB" in figures
        assert "Pss:                   4 kB" in figures

    heartbeat = family.start(body)
    assert family.end(heartbeat) == 0
    with open("/proc/self/maps") as file:
        assert "actorgrid-pulse" not in file.read()


def test_closing_twice_is_harmless_and_leaves_no_descriptor(family: Family) -> None:
    heartbeat = family.make()
    heartbeat.close()
    heartbeat.close()
    assert descriptors("self") == []


def test_without_a_free_descriptor_there_are_too_many_actors(family: Family) -> None:
    def body(_: OwnHeartbeat) -> None:
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, hard))
        made = []
        with pytest.raises(TooManyActors, match="open files"):
            while len(made) < 1000:
                made.append(Heartbeat())
        for each in made:
            each.close()

    assert family.end(family.start(body)) == 0


def test_an_unknown_number_is_a_broken_invariant() -> None:
    with pytest.raises(AssertionError, match="was not made before"):
        adopt(0)


# -- judged for real


def judged(pulses: dict[str, Heartbeat], done: Callable[[], bool]) -> dict[str, str]:
    """The verdicts on real children, judged every 50 ms until *done* or all are hung."""
    watchdog = Watchdog(0.05, 0.1)
    verdicts: dict[str, str] = {}
    for child_id in pulses:
        watchdog.watch(child_id, 1.0)

    def judge() -> bool:
        readings = {child_id: heartbeat.read() for child_id, heartbeat in pulses.items()}
        verdicts.update({hung.child_id: hung.message for hung in watchdog.judge(readings, monotonic())})
        return done() or len(verdicts) == len(pulses)

    wait_until(judge, next(iter(pulses.values())))
    return verdicts


def test_the_stopped_and_the_looping_are_hung_and_the_beating_is_not(family: Family) -> None:
    stopped, looping, beating = family.start(beat_on), family.start(spin_in_python), family.start(beat_on)
    assert stopped.pid is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    os.waitpid(stopped.pid, os.WUNTRACED)
    found = judged({"stopped": stopped, "looping": looping}, lambda: False)
    assert "its loop has not turned" in found["stopped"]
    assert "declared at most 0.05 s (Spin)" in found["looping"]
    since = beating.read().beats
    assert judged({"beating": beating}, lambda: beating.read().beats > since + 200) == {}


def test_long_work_within_its_declared_time_is_left_alone(family: Family) -> None:
    def body(own: OwnHeartbeat) -> None:
        own.running()
        own.handler_started(600.0, "Long")
        threading.Event().wait(1.0)
        own.handler_ended()
        beat_on(own)

    heartbeat = family.start(body)
    assert judged({"worker": heartbeat}, lambda: heartbeat.read().handled == 1) == {}
