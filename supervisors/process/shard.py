"""A shard: the light processes of one thread, and what the program around them may ask.

    with Shard() as shard:
        counter = shard.start(Counter, 10)
        print(shard.call(counter, "next"))

Nothing runs by itself: processes have their turns while the program is in ``call``, ``start``, ``run`` or
``wait_until``. In an asyncio program ``await shard.serve()`` gives them their turns beside everything else
(``asyncio_bridge.py``). Other threads may use ``post`` and ``post_call``, and nothing else.

Bounds: ``processes_max`` processes (4,194,304); 1,000,000 posted messages that were not taken yet.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from actorgrid.errors import ActorGridError, BadRequest, CallTimeout, NoSuchActor, NotSupported, StartFailed
from actorgrid.hotpath.light import LightProcess, Pid, ProcessCall, ProcessCast, ProcessCore

from ..exits import SHUTDOWN, ExitReason
from .base import FunctionProcess, Process
from .ends import ProcessEnds
from .events import reason_of
from .names import checked_name, name_taken
from .overruns import OverrunWatch
from .running import running_shard
from .ties import ties_of

T = TypeVar("T")

PROCESSES_MAX = 1 << 22
POSTED_MAX = 1_000_000
TURNS = 256
_IDLE_S = 3600.0


class Shard(ProcessEnds):
    """One shard; see the module. *host* and *number* are what its pids begin with.

    *report_after_s* and *interrupt_after_s*: see ``OverrunWatch``. *clock* gives nanoseconds; given another than the
    real one, nothing waits for time to pass.
    """

    def __init__(
        self,
        host: str = "local",
        number: int = 0,
        *,
        processes_max: int = PROCESSES_MAX,
        report_after_s: float = 1.0,
        interrupt_after_s: float | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__()
        self.clock = clock
        self.core = ProcessCore(self, host, number, clock, processes_max)
        self.function_process = FunctionProcess
        self.overruns = OverrunWatch(self, report_after_s, interrupt_after_s)
        self.closed = False
        self.on_wake: Callable[[], None] | None = None
        """Called, in any thread, when something was posted; for who waits elsewhere than in this class."""
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.epoll()
        self._poll.register(self._wake, select.EPOLLIN)

    def now_ns(self) -> int:
        """The shard's clock."""
        return self.clock()

    # -- processes

    def spawn(self, kind: Any, *args: Any) -> Pid:
        """Begin a process: of a class, or an ``async`` function that takes it first.

        Raises BadRequest, TooManyActors.
        """
        self._check_open()
        return self.core.spawn(kind, args).pid

    def spawn_opt(
        self,
        kind: Any,
        args: tuple[Any, ...] = (),
        *,
        parent: LightProcess | None = None,
        link: bool = False,
        name: str | None = None,
        priority: str | None = None,
        label: str = "",
    ) -> Pid:
        """``spawn`` with options. Raises NameTaken too; then there is no process."""
        self._check_open()
        if name is not None and (holder := self.whereis(name)) is not None:
            raise name_taken(name, holder)
        process = self.core.spawn(kind, args, parent.pid if parent is not None else None, priority)
        if link and parent is not None:
            self.link(parent, process.pid)
        if name is not None:
            self.register(name, process.pid)
        if label:
            ties_of(process).label = label
        return process.pid

    def start(self, kind: Any, *args: Any, timeout_s: float = 60.0, **options: Any) -> Pid:
        """``spawn``, and run until ``init`` has ended. Raises what that raised; StartFailed.

        Options are spawn_opt's.
        """
        outcome: list[ExitReason | None] = []
        pid = self.spawn_opt(kind, args, **options)
        self._tell_start(pid, outcome.append)
        if not self.wait_until(lambda: bool(outcome), timeout_s):
            self.exit(pid, "killed")
            raise _slow(kind, timeout_s)
        if outcome[0] is not None:
            raise _failed(kind, outcome[0])
        return pid

    def when_started(
        self, pid: Pid, kind: Any, started: Callable[[Pid], None], failed: Callable[[BaseException], None]
    ) -> None:
        """Call back when the ``init`` of a process that has had no turn yet has ended well, or it ended before."""

        def ended(reason: ExitReason | None) -> None:
            if reason is None:
                started(pid)
            else:
                failed(_failed(kind, reason))

        self._tell_start(pid, ended)

    def start_for(
        self, process: LightProcess, kind: Any, args: tuple[Any, ...], link: bool, timeout_s: float
    ) -> Awaitable[Pid]:
        """``start`` for a process, which awaits it."""
        waiting = self.core.waiting(process)
        # Linked only when it is up: the failure is raised here, and is no end of ours.
        pid = self.spawn_opt(kind, args, parent=process)

        def ended(reason: ExitReason | None) -> None:
            timer.cancel()
            if reason is None:
                if link:
                    self.link(process, pid)
                waiting.settle(pid)
            else:
                waiting.fail(_failed(kind, reason))

        def late() -> None:
            if waiting.fail(_slow(kind, timeout_s)):
                self.exit(pid, "killed")

        timer = self.core.call_after(timeout_s, late)
        self._tell_start(pid, ended)
        return waiting

    def _tell_start(self, pid: Pid, ended: Callable[[ExitReason | None], None]) -> None:
        process = self.core.find(pid)
        if process is None:
            raise AssertionError("a process that has had no turn yet is gone")
        ties_of(process).start = ended
        self.core.tell_start(process)

    def info(self, pid: Pid | str) -> Process | None:
        """The process object itself, for looking at; ``None`` when it has ended or is of another shard."""
        target = self.pid_of(pid)
        return cast("Process | None", self.core.find(target)) if target is not None else None

    # -- messages

    def send(self, to: Pid | str, message: Any) -> bool:
        """Send a message; ``False`` when it is refused or nobody is there."""
        self._check_open()
        return self.core.send(to, message)

    def cast(self, to: Pid | str, message: Any) -> bool:
        """Send a message for ``handle_cast``."""
        return self.send(to, ProcessCast(message))

    def call(self, to: Pid | str, request: Any, timeout_s: float | None = 5.0) -> Any:
        """Ask, and run until there is an answer.

        Raises what it raised, CallTimeout, ActorDown, NoSuchActor, MailboxFull.
        """
        self._check_open()
        answers: list[ProcessCall] = []
        self.core.call(to, request, timeout_s, answers.append)
        if not self.wait_until(lambda: bool(answers), None):
            raise CallTimeout(f"{to} does not answer, and nothing is left to wait for")
        value, error = answers[0].outcome
        if error is not None:
            raise error
        return value

    def call_soon(
        self, to: Pid | str, request: Any, timeout_s: float | None, on_answer: Callable[[ProcessCall], None]
    ) -> None:
        """Ask.

        *on_answer* is called with the ProcessCall, whose ``outcome`` is (value, error), while the shard runs.
        """
        self._check_open()
        self.core.call(to, request, timeout_s, on_answer)

    # -- names and groups

    def whereis(self, name: Any) -> Pid | None:
        """Who has the name, here or in a shard beside this one. Raises BadRequest."""
        return self.names.names.get(checked_name(name)) or self.carrier.whereis(name)

    def register(self, name: str, pid: Pid) -> None:
        """Give a process of this shard a name. Raises NameTaken, NoSuchActor, BadRequest."""
        self.names.register(name, self.core.find(pid) or self._nobody(pid))

    def register_global(self, process: LightProcess, name: str, timeout_s: float) -> Awaitable[None]:
        """Give a process a name of all shards; of one by itself, its own are all there are."""
        self.register(name, process.pid)
        waiting = self.core.waiting(process)
        waiting.settle(None)
        return waiting

    def claim_global(self, process: LightProcess, name: str) -> None:
        """The same without waiting."""
        self.register(name, process.pid)

    def name_token(self, process: LightProcess, name: str) -> str:
        """The token of a name of all shards; one by itself gives none. Raises NotSupported."""
        raise NotSupported("names have tokens in a set of shards only", hint="client.start_shards(...)")

    def unregister(self, name: str, pid: Pid) -> bool:
        """Take it from it."""
        process = self.core.find(pid)
        return process is not None and self.names.unregister(name, process)

    def join(self, group: str, pid: Pid) -> None:
        """Make a process of this shard a member. Raises NoSuchActor, BadRequest."""
        self.names.join(group, self.core.find(pid) or self._nobody(pid))

    def leave(self, group: str, pid: Pid) -> bool:
        """End its membership."""
        process = self.core.find(pid)
        return process is not None and self.names.leave(group, process)

    def members(self, group: str) -> list[Pid]:
        """The members of a group, the oldest first."""
        return self.names.members(group)

    @staticmethod
    def _nobody(who: object) -> Any:
        raise NoSuchActor(f"there is no process {who} in this shard")

    # -- turns

    def run(self, turns: int = TURNS) -> int:
        """Take what was posted and give up to *turns* turns; how many there were. Does not wait."""
        self._check_open()
        while self._posted:
            self._posted.popleft()()
        before = running_shard.get()
        running_shard.set(self)
        self.overruns.watch()
        try:
            taken = self.core.run(turns)
        finally:
            running_shard.set(before)
            self.overruns.rest()
        self.after_turns()
        return taken

    def after_turns(self) -> None:
        """Called after turns; for shards that have others beside them."""

    def run_until_idle(self) -> None:
        """Run until nobody is ready. Does not wait for timers."""
        while self.run() or self._posted:
            pass

    def wait_until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Run until *condition* holds: ``True``. ``False`` when it does not in time, or nothing is left to wait for."""
        deadline = None if timeout_s is None else self.clock() + int(timeout_s * 1e9)
        while not condition():
            if self.run() or self._posted:
                continue
            if condition():
                break
            left_ns = self.core.due_in_ns()
            if deadline is not None:
                until = deadline - self.clock()
                if until <= 0:
                    return False
                left_ns = until if left_ns < 0 else min(left_ns, until)
            if not self.wait(left_ns):
                return False
        return True

    def wait(self, for_ns: int) -> bool:
        """Wait for something posted, at most so long (-1: an hour); ``False`` where time does not pass by itself."""
        if self.clock is not time.monotonic_ns:
            return False
        # Rounded up: woken a moment early, we would only go round again.
        self._poll.poll(_IDLE_S if for_ns < 0 else (for_ns + 999_999) // 1_000_000 / 1000)
        self.clear_wake()
        return True

    def run_for(self, seconds: float) -> None:
        """Run for that long, waiting where nobody is ready."""
        self.wait_until(lambda: False, seconds)

    def clear_wake(self) -> None:
        """Take the signal that something was posted."""
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return

    def wake(self) -> None:
        """Make whoever waits for this shard look; from any thread."""
        if self.on_wake is not None:
            self.on_wake()
        else:
            os.eventfd_write(self._wake, 1)

    # -- from other threads

    def post(self, to: Pid | str, message: Any) -> bool:
        """``send`` from any thread; ``False`` when too much waits already. Whether it arrives is not told."""
        return self._post(lambda: self.core.send(to, message))

    def post_call(self, to: Pid | str, request: Any, timeout_s: float | None = 5.0) -> Future[Any]:
        """``call`` from any thread."""
        future: Future[Any] = Future()

        def answer(call: ProcessCall) -> None:
            value, error = call.outcome
            if future.set_running_or_notify_cancel():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(value)

        def ask() -> None:
            try:
                self.core.call(to, request, timeout_s, answer)
            except ActorGridError as error:
                future.set_exception(error)

        if not self._post(ask):
            future.set_exception(NoSuchActor("the shard is closed, or too much waits for it already"))
        return future

    def post_action(self, action: Callable[[], T]) -> Future[T]:
        """Call *action* in the shard's thread, from any other; a future of what it gives."""
        future: Future[T] = Future()

        def act() -> None:
            try:
                future.set_result(action())
            except BaseException as error:  # noqa: BLE001 - it is raised at whoever asked
                future.set_exception(error)

        if not self._post(act):
            future.set_exception(NoSuchActor("the shard is closed, or too much waits for it already"))
        return future

    def _post(self, action: Callable[[], Any]) -> bool:
        if self.closed or len(self._posted) >= POSTED_MAX:
            return False
        self._posted.append(action)
        self.wake()
        return True

    # -- what the core reports

    def foreign_await(self, process: LightProcess, awaited: Any) -> None:
        """End a process that awaits something of asyncio's where no loop runs; ``AsyncioBridge`` does better."""
        error = BadRequest(
            f"{process.pid} awaits {awaited!r:.100}, which is not of light processes",
            hint="serve the shard in asyncio: await serve(shard)",
        )
        self.process_ended(process, error)

    # -- the end

    def stop(self, pid: Pid | str, reason: ExitReason | str = SHUTDOWN) -> bool:
        """End a process of this shard in order, even one that traps exits; ``False`` when it has ended."""
        target = self.pid_of(pid)
        process = self.core.find(target) if target is not None else None
        if process is None:
            return False
        self.end(process, reason_of(reason))
        return True

    def close(self) -> None:
        """End all processes of ``shutdown``, the youngest first, with their ``terminate``; again: harmless."""
        if self.closed:
            return
        for supervisor in list(self.supervisors):
            process = self.core.find(supervisor)
            if process is not None:
                self.end(process, SHUTDOWN)
        for process in reversed(self.core.processes()):
            self.end(process, SHUTDOWN)
        self.core.drop_timers()
        self.closed = True
        self.overruns.close()
        self._poll.close()
        os.close(self._wake)

    def _check_open(self) -> None:
        if self.closed:
            raise NoSuchActor("this shard was closed", hint="make another Shard")

    def __enter__(self) -> Shard:
        return self

    def __exit__(self, *_error: object) -> None:
        """Close it."""
        self.close()


def _failed(kind: Any, reason: ExitReason) -> ActorGridError:
    name = getattr(kind, "__name__", repr(kind))
    return reason.error or StartFailed(f"{name} did not start: {reason}", found=reason.traceback[-1000:])


def _slow(kind: Any, timeout_s: float) -> StartFailed:
    return StartFailed(f"{getattr(kind, '__name__', kind)} did not start in {timeout_s:g} s", hint="look at its init")
