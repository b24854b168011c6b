"""A stage for one SupervisorCore: pretended processes, a clock that the test moves, and a record of what was done.

It holds the core to its contract at every step: one process of an id at a time, nothing started once it stops, each
request answered once, each timer set once at a time, Exit once and last.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from actorgrid.errors import ActorGridError, StartFailed
from actorgrid.supervisors.child import ChildSpec, SupervisorFlags
from actorgrid.supervisors.exits import ExitReason
from actorgrid.supervisors.instructions import (
    CancelTimer,
    Exit,
    Forgotten,
    GoOnWithout,
    Instruction,
    KillProcess,
    ReplyTo,
    SetTimer,
    StartEnded,
    StartProcess,
    Stopping,
    StopProcess,
    Tag,
)
from actorgrid.supervisors.restart import SupervisorCore

CRASH = ExitReason("error", "a broken invariant", exit_status=70)
NORMAL = ExitReason("normal", exit_status=0)
KILLED = ExitReason("killed", exit_status=-9)


def spec(words: str, **fields: Any) -> ChildSpec:
    """``spec("a")``, ``spec("a transient significant")``, ``spec("a brutal_kill")``."""
    child_id, *rest = words.split()
    for word in rest:
        if word in ("permanent", "transient", "temporary"):
            fields["restart"] = word
        elif word in ("brutal_kill", "infinity"):
            fields["shutdown"] = word
        elif word == "supervisor":
            fields["type"] = word
        else:
            fields[word] = True
    return ChildSpec(child_id, "m:C", **fields)


class Stage:
    """Children come up and end when asked, unless they are ``silent``, ``stubborn`` or ``immortal``."""

    def __init__(
        self,
        *specs: str | ChildSpec,
        strategy: Any = "one_for_one",
        intensity: int = 3,
        period_s: float = 10.0,
        auto_shutdown: Any = "never",
    ) -> None:
        flags = SupervisorFlags(strategy, intensity, period_s, auto_shutdown)
        self.core = SupervisorCore("boss", flags, [spec(each) if isinstance(each, str) else each for each in specs])
        self.now_s = 0.0
        self.did: list[str] = []
        self.orders: list[Instruction] = []
        self.processes: dict[str, str] = {}  # id -> "starting", "up"; values are what the world knows
        self.silent: set[str] = set()
        self.stubborn: set[str] = set()
        self.immortal: set[str] = set()
        self.refused: dict[str, int] = {}  # so many starts get no process
        self.failing: dict[str, int] = {}  # so many starts raise
        self.timers: dict[Tag, float] = {}
        self.replies: dict[int, ReplyTo] = {}
        self.asked: set[int] = set()
        self.stopping: Stopping | None = None
        self.started: StartEnded | None = None
        self.exit: Exit | None = None
        self.automatic = True
        self._to_do: deque[Instruction] = deque()
        self._soon: deque[tuple[str, str]] = deque()

    # -- carrying out

    def feed(self, instructions: list[Instruction]) -> None:
        self._to_do.extend(instructions)
        while self._to_do:
            instruction = self._to_do.popleft()
            assert self.exit is None, f"{instruction} after Exit"
            self.orders.append(instruction)
            self._obey(instruction)

    def _obey(self, instruction: Instruction) -> None:
        match instruction:
            case StartProcess(child_id, _, arguments):
                assert child_id not in self.processes, f"two processes of {child_id}"
                assert self.stopping is None, f"{child_id} is started by a supervisor that stops"
                self.did.append(f"start {child_id}" + "".join(f" {each}" for each in arguments))
                if self.refused.get(child_id, 0):
                    self.refused[child_id] -= 1
                    refused = self.core.process_refused(child_id, StartFailed("no process"), self.now_s)
                    self._to_do.extend(refused)
                    return
                self.processes[child_id] = "starting"
                self._soon.append(("up", child_id))
            case StopProcess(child_id, _):
                self.did.append(f"stop {child_id}")
                if child_id not in self.stubborn:
                    self._soon.append(("stopped", child_id))
            case KillProcess(child_id, _):
                self.did.append(f"kill {child_id}")
                if child_id not in self.immortal:
                    self._soon.append(("killed", child_id))
            case GoOnWithout(child_id):
                self.did.append(f"go on without {child_id}")
            case Forgotten():
                pass
            case SetTimer(tag, delay_s):
                assert tag not in self.timers, f"{tag} is set already"
                self.timers[tag] = self.now_s + delay_s
            case CancelTimer(tag):
                del self.timers[tag]
            case ReplyTo(request):
                assert request in self.asked and request not in self.replies, f"a second answer: {instruction}"
                self.replies[request] = instruction
            case Stopping():
                assert self.stopping is None
                self.stopping = instruction
            case StartEnded():
                assert self.started is None
                self.started = instruction
            case Exit():
                assert not self.timers, self.timers
                assert self.asked == set(self.replies), "a request was left without an answer"
                assert self.started is not None or self.core.phase == "new"
                self.exit = instruction

    # -- the world

    def settle(self) -> None:
        """What happens at once, happens."""
        while self._soon:
            what, child_id = self._soon.popleft()
            if child_id not in self.processes:
                continue
            if what == "up" and child_id not in self.silent and self.processes[child_id] == "starting":
                if self.failing.get(child_id, 0):
                    self.failing[child_id] -= 1
                    self.start_fails(child_id)
                else:
                    self.up(child_id)
            elif what != "up":
                self.ends(child_id, NORMAL if what == "stopped" else KILLED)

    def up(self, child_id: str) -> None:
        self.processes[child_id] = "up"
        self.feed(self.core.child_started(child_id, self.now_s))

    def start_fails(self, child_id: str, error: ActorGridError | None = None, ends: bool = True) -> None:
        self.feed(self.core.child_start_failed(child_id, error or StartFailed(f"{child_id} cannot"), self.now_s))
        if ends:
            self.ends(child_id, ExitReason("error", exit_status=71))

    def ends(self, child_id: str, reason: ExitReason = CRASH) -> None:
        del self.processes[child_id]
        self.feed(self.core.child_exited(child_id, reason, self.now_s))

    def advance(self, seconds: float) -> None:
        end = self.now_s + seconds
        self._run_automatic()
        while due := [(at, tag.what, tag.id, tag) for tag, at in self.timers.items() if at <= end]:
            at, _, _, tag = min(due)
            self.now_s = max(self.now_s, at)
            del self.timers[tag]
            self.feed(self.core.timer_fired(tag, self.now_s))
            self._run_automatic()
        self.now_s = end

    def _run_automatic(self) -> None:
        if self.automatic:
            self.settle()

    # -- what tests do

    def start(self) -> Stage:
        self.feed(self.core.start(self.now_s))
        self.settle()
        return self

    def dies(self, child_id: str, reason: ExitReason = CRASH) -> list[str]:
        """It ends by itself; what was done about it."""
        return self.doing(lambda: self.ends(child_id, reason))

    def doing(self, action: Any) -> list[str]:
        before = len(self.did)
        action()
        self._run_automatic()
        return self.did[before:]

    def ask(self, what: str, *arguments: Any) -> int:
        """Put a request; its number."""
        number = len(self.asked) + 1
        self.asked.add(number)
        self.feed(getattr(self.core, what)(number, *arguments, self.now_s))
        self._run_automatic()
        return number

    def answer(self, what: str, *arguments: Any) -> str:
        """Put a request and return what came back: the child's id, or the error's name."""
        return self.outcome(self.ask(what, *arguments))

    def outcome(self, number: int) -> str:
        reply = self.replies.get(number)
        if reply is None:
            return "open"
        return reply.error.code if reply.error is not None else reply.child_id

    def shutdown(self, reason: str = "asked by a test") -> list[str]:
        return self.doing(lambda: self.feed(self.core.shutdown(reason)))

    def states(self) -> dict[str, str]:
        return {child.id: child.state for child in self.core.children()}

    def live(self) -> list[str]:
        return [child.id for child in self.core.children() if child.state == "up"]
