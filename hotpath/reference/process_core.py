"""Light processes and the loop that gives them turns, in plain Python.

A **process** is an object of a class that derives from :class:`LightProcess`, with a mailbox. It is of one of two
kinds. One with handlers (``init``, ``handle_info``, ``handle_call``, ``handle_cast``) runs only while it handles a
message; a handler may be ``async def``, and then nothing else is handled until it has ended. One with a coroutine
(``run``) lives as long as that, and takes messages where it awaits ``receive``.

A process has **turns**. In one it handles up to a slice of messages, or until it has none or awaits something; nobody
interrupts it. Whose turn is next says the run queue, by priority. What a handler raises ends its process, and no other;
but an ActorGridError raised by ``handle_call`` is the answer to its caller.

This core knows processes, mailboxes, calls and timers. What an end means (links, monitors, names, supervisors), where
names lead and how other shards are reached is the business of its *hooks*, whose methods are listed in
``process_hooks.py``.

What lives is in the table of pids, and the kernel hides it from the garbage collector, which would visit a million
objects in vain; from its end on a process is an ordinary object again. So close a shard that is not used any more.

Bounds: a mailbox holds ``mailbox_limit`` messages; at that, ``on_full`` says whether a new one is refused, the oldest
is dropped, or the process ends. Answers and the ends of others are bounded by what the process asked for, and always
come in.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from actorgrid.errors import BadRequest, CallTimeout, MailboxFull, ReceiveTimeout
from actorgrid.hotpath.interrupts import take_back_interrupt

from .light_process import Behaviour, LightProcess
from .pid_table import PidTable
from .process_hooks import ProcessHooks
from .process_records import (
    FAILED,
    NO_REPLY,
    PENDING,
    Order,
    Pid,
    ProcessCall,
    ProcessCast,
    Receive,
    SendTimer,
    ShardAddress,
    Waiting,
    is_expected,
    level_of,
    nanoseconds,
)
from .run_queue import RunQueue
from .timer_wheel import TimerWheel

TICK_NS = 100_000


class ProcessCore:
    """All processes of one shard, and their turns. *clock* gives nanoseconds and never steps back.

    Not for several threads; ``interrupt`` alone is called by another, which must hold the interpreter's lock.
    """

    def __init__(
        self, hooks: ProcessHooks, host: str, shard: int, clock: Callable[[], int], processes_max: int
    ) -> None:
        self.hooks = hooks
        self.address = ShardAddress(host, shard)
        self.ready = RunQueue()
        self._table = PidTable(processes_max)
        self._clock = clock
        self.wheel = TimerWheel(clock() // TICK_NS)
        self._behaviours: dict[type, Behaviour] = {}
        self._replaced: dict[type, type] = {}
        self.current: LightProcess | None = None
        self._in_run = False
        self.successor: CoroutineType[Any, Any, Any] | None = None  # takes the place of the coroutine that runs
        self._interrupted = 0
        self.turn_number = 0
        self.messages = 0
        self.refused = 0
        self.spawned = 0
        self.ended = 0

    # -- asked by the shard

    def spawn(
        self,
        kind: Any,
        args: tuple[Any, ...] = (),
        parent: Pid | None = None,
        priority: str | None = None,
        tells_start: bool = False,
    ) -> LightProcess:
        """Begin a process; gives it. Raises BadRequest, TooManyActors."""
        if not isinstance(kind, type):
            if not callable(kind):
                raise BadRequest(
                    "this is no class of processes and no function",
                    asked=repr(kind)[:200],
                    hint="spawn(Counter, 1), or spawn(function, 1) with async def function(me, start)",
                )
            kind, args = self.hooks.function_process, (kind, *args)
        kind = self._replaced.get(kind, kind)
        behaviour = self._behaviour(kind)
        level = behaviour.level if priority is None else level_of(priority)
        process: LightProcess = kind.__new__(kind)
        number, generation = self._table.add(process)
        process.pid = Pid(self.address, number, generation)
        process.pid.process = process
        process._core = self
        process._behaviour = behaviour
        process._mail = deque()
        process._running = process._answering = process._deferred = process.attachments = None
        process._awaited = args
        process.parent = parent
        process._level = level
        process._flags = {"starting"} | ({"coroutine"} if behaviour.coroutine else set())
        if tells_start:
            process._flags.add("tells_start")
        process._left = process._reduced = 0
        process.make_ready()
        self.spawned += 1
        return process

    def send(self, to: Any, message: Any) -> bool:
        """``LightProcess.send``, from outside."""
        process = self.find(to)
        return self.deliver(process, message) if process is not None else bool(self.hooks.send_elsewhere(to, message))

    def tell(self, process: LightProcess, message: Any) -> None:
        """Put a message in, whatever the limit of the mailbox; nothing happens when the process has ended."""
        if process._core is not None:
            process._mail.append(message)
            if process._phase == "waiting" and ("held" not in process._flags or type(message) is Order):
                process.make_ready()

    def call(
        self, to: Any, request: Any, timeout_s: float | None, on_answer: Callable[[ProcessCall], None]
    ) -> ProcessCall:
        """``LightProcess.call`` from outside: *on_answer* is called with the ProcessCall when it is done."""
        return self.place_call(None, to, request, timeout_s, None, on_answer)

    def place_call(
        self,
        caller: LightProcess | None,
        to: Any,
        request: Any,
        timeout_s: float | None,
        label: tuple[Any] | None,
        on_answer: Callable[[ProcessCall], None] | None,
    ) -> ProcessCall:
        """Send a call on its way: of a process, or with *on_answer*."""
        call = ProcessCall(self, caller, to, request, timeout_s, label, on_answer)
        if timeout_s is not None:
            call.timer = self.set_timer(timeout_s, call)
        process = self.find(to)
        if process is None:
            self.hooks.call_elsewhere(call)
        else:
            self.deliver(process, call)
        return call

    def send_after(self, delay_s: float, to: Any, message: Any) -> SendTimer:
        """``LightProcess.send_after``, from outside."""
        timer = SendTimer(self, to, message)
        timer.timer = self.set_timer(delay_s, timer)
        return timer

    def call_after(self, delay_s: float, action: Callable[[], None]) -> SendTimer:
        """Call *action* in *delay_s* seconds, unless the timer that this gives is cancelled."""
        return self.send_after(delay_s, None, action)

    def waiting(self, process: LightProcess) -> Waiting:
        """Something that *process* may await and the shard brings."""
        return Waiting(process)

    def find(self, pid: Any) -> LightProcess | None:
        """The process of that Pid or name if it lives here, or ``None``."""
        if not isinstance(pid, Pid):
            pid = self.hooks.whereis(pid)
            if pid is None:
                return None
        if pid.address != self.address:
            return None
        found: LightProcess | None = self._table.get(pid.id, pid.generation)
        return found

    def processes(self) -> list[LightProcess]:
        """All living processes, by their numbers."""
        return list(self._table)

    def hold(self, process: LightProcess) -> None:
        """Suspend: no message is handled until ``release``. A coroutine that waits for something else goes on."""
        process._flags.add("held")

    def release(self, process: LightProcess) -> None:
        """Resume a suspended process."""
        if "held" in process._flags:
            process._flags.remove("held")
            if process._phase == "waiting" and process._mail:
                process.make_ready()

    def wake(self, process: LightProcess, awaited: Any) -> None:
        """Let a coroutine that awaits *awaited*, something foreign, go on."""
        if process._core is not None and process._phase == "awaiting" and process._awaited is awaited:
            process.make_ready()

    def tell_start(self, process: LightProcess) -> None:
        """Have ``process_started`` told when the start of *process*, which has not had a turn yet, has ended well."""
        process._flags.add("tells_start")

    def discard(self, process: LightProcess, unwanted: Callable[[Any], bool]) -> None:
        """Take the messages out of a mailbox that *unwanted* says yes to."""
        seen = process._awaited.seen if isinstance(process._awaited, Receive) else 0
        out = [place for place, message in enumerate(process._mail) if unwanted(message)]
        for place in reversed(out):
            del process._mail[place]
        if seen:
            process._awaited.seen = seen - sum(1 for place in out if place < seen)

    def stop_later(self, process: LightProcess) -> None:
        """Have ``process_ended`` told after the present handler of *process*."""
        process._flags.add("stopping")

    def set_priority(self, process: LightProcess, priority: str) -> None:
        """Change the priority from the next turn on."""
        process._level = level_of(priority)

    def replace_class(self, old: type, new: type) -> None:
        """Begin processes of *new* wherever *old* is asked for, from now on; *old* itself ends that."""
        if new is old:
            self._replaced.pop(old, None)
        else:
            self._replaced[old] = new

    def take_class_anew(self, process: LightProcess) -> None:
        """Let the class of the process, which was changed, count from now on."""
        process._behaviour = self._behaviour(type(process))

    def go_on_with(self, process: LightProcess, successor: Any) -> None:
        """For an Order: run *successor*, a coroutine, in place of the one that waits for a message, which is closed."""
        if process is not self.current:
            raise BadRequest("only the process that carries out an order goes on with another coroutine")
        if self.successor is not None:
            self.successor.close()
        self.successor = successor

    def remove(self, process: LightProcess, reason: Any) -> bool:
        """End the process: it gets no turn any more, its number is free, who called it is told *reason*.

        ``False`` when it had ended. Its coroutine, if one runs, is closed: that may run code of the user.
        """
        if process._core is not self:
            return False
        process._core, process._phase, process.pid.process = None, "ended", None
        self._table.remove(process.pid.id, process.pid.generation)
        self.ended += 1
        awaited, process._awaited = process._awaited, None
        if isinstance(awaited, Waiting):
            self.cancel(awaited)
            awaited.process = None
        open_calls = [process._answering, *(process._deferred or ())]
        open_calls += [message for message in process._mail if type(message) is ProcessCall]
        process._answering = process._deferred = None
        process._mail.clear()
        for call in open_calls:
            if call is not None and call.outcome_state == PENDING:
                call.fail(self.hooks.down_error(process, reason))
        running, process._running = process._running, None
        if running is not None and process is not self.current:
            self._close(process, running)
        return True

    def run(self, turns: int) -> int:
        """Bring what is due, then give up to *turns* turns; gives how many there were. Only one ``run`` at a time."""
        if self._in_run:
            raise BadRequest("the shard runs already", hint="a handler awaits: await self.call(...)")
        self._in_run = True
        taken = 0
        try:
            self._bring_due()
            while taken < turns and self.ready:
                process: LightProcess = self.ready.pop()
                if process._phase != "ready":
                    continue
                taken += 1
                self.turn_number += 1
                self.current = process
                self._turn(process)
                if self._interrupted:
                    take_back_interrupt()
                    self._interrupted = 0
        finally:
            self.current = None
            self._in_run = False
        return taken

    def interrupt(self, turn_number: int, thread_id: int, error: type[BaseException]) -> bool:
        """Raise *error*, a class, in the turn of that number, which that thread runs; ``False`` when it is over."""
        if not self._in_run or self.turn_number != turn_number or self.current is None:
            return False
        self._interrupted = thread_id
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(error))
        return True

    def due_in_ns(self) -> int:
        """Nanoseconds until the next timer is due: 0 when something is ready, -1 when there is nothing to wait for."""
        if self.ready:
            return 0
        tick = self.wheel.next_tick()
        return -1 if tick is None else max(0, tick * TICK_NS - self._clock())

    def drop_timers(self) -> None:
        """Forget all timers, and who has ended and still stands in the run queue."""
        for item in self.wheel.advance(1 << 62):
            if isinstance(item, SendTimer):
                item.core = None
            else:
                item.timer = -1
        self.wheel = TimerWheel(self._clock() // TICK_NS)
        if not len(self._table):
            self.ready.clear()

    @property
    def living(self) -> int:
        """How many processes there are."""
        return len(self._table)

    @property
    def ready_count(self) -> int:
        """How many wait for a turn."""
        return len(self.ready)

    @property
    def timer_count(self) -> int:
        """How many timers are set, those of calls among them."""
        return len(self.wheel)

    # -- mail

    def deliver(self, process: LightProcess, message: Any) -> bool:
        """Put the message in by the mailbox's policy; whether it is in."""
        if len(process._mail) >= process._behaviour.limit:
            return self._overflow(process, message)
        process._mail.append(message)
        if process._phase == "waiting" and "held" not in process._flags:
            process.make_ready()
        return True

    def _overflow(self, process: LightProcess, message: Any) -> bool:
        policy = process._behaviour.on_full
        self.refused += 1
        if policy == "drop_oldest":
            for oldest in process._mail:
                if type(oldest) is not Order:
                    process._mail.remove(oldest)
                    if type(oldest) is ProcessCall:
                        oldest.fail(_full(process))
                    self.tell(process, message)
                    return True
        if type(message) is ProcessCall:
            message.fail(_full(process))
        if policy == "exit":
            self.hooks.mailbox_overflowed(process)
        return False

    # -- timers

    def set_timer(self, delay_s: float, item: Any) -> int:
        """Have *item* brought no earlier than *delay_s* from now. Raises BadRequest."""
        return self.wheel.add(-(-(self._clock() + nanoseconds(delay_s)) // TICK_NS), item)

    def cancel(self, waiting: Waiting) -> None:
        """Forget the timer of something awaited; harmless when it has none."""
        timer, waiting.timer = waiting.timer, -1
        if timer >= 0:
            self.wheel.cancel(timer)

    def _bring_due(self) -> None:
        for item in self.wheel.advance(self._clock() // TICK_NS):
            if isinstance(item, SendTimer):
                item.core = None
                if item.to is None:
                    item.message()
                else:
                    self.send(item.to, item.message)
            else:
                self._expire(item)

    def _expire(self, waiting: Waiting) -> None:
        waiting.timer = -1
        if isinstance(waiting, ProcessCall):
            waiting.fail(
                CallTimeout(
                    f"{waiting.server} did not answer in {waiting.timeout_s:g} s",
                    hint="it may be busy; whether it acted is unknown",
                )
            )
        elif isinstance(waiting, Receive):
            process = waiting.process
            waiting.outcome_state = FAILED
            waiting.value = ReceiveTimeout(f"no such message came in {waiting.timeout_s:g} s")
            waits = process is not None and process._awaited is waiting and process._phase == "waiting"
            if process is not None and waits and "held" not in process._flags:
                process.make_ready()
        else:
            waiting.settle(None)

    # -- turns

    def _behaviour(self, kind: type) -> Behaviour:
        known = self._behaviours.get(kind)
        if known is None:
            if len(self._behaviours) >= 1024:
                self._behaviours.clear()
            known = self._behaviours[kind] = Behaviour(kind)
        return known

    def _turn(self, process: LightProcess) -> None:
        """One turn: up to a slice of messages, or until it waits. Raises KeyboardInterrupt alone."""
        process._phase, process._left = "running", process._behaviour.slice
        slice_messages = process._behaviour.slice
        if self._begin_turn(process):
            self._handle_messages(process)
        process._reduced += slice_messages - process._left
        self.messages += slice_messages - process._left
        process._left = 0

    def _begin_turn(self, process: LightProcess) -> bool:
        """Go on where it was; whether it handles messages now."""
        if process._running is not None:
            return self._advance(process)
        if "starting" not in process._flags:
            return True
        args, process._awaited = process._awaited, None
        start = process._behaviour.start
        if process._behaviour.function:
            start, args = args[0], args[1:]
        return start is None or self._handler(process, start, *args)

    def _handle_messages(self, process: LightProcess) -> None:
        while process._mail and process._left > 0:
            if "held" in process._flags and type(process._mail[0]) is not Order:
                break
            message = process._mail.popleft()
            process._left -= 1
            behaviour = process._behaviour
            if type(message) is ProcessCall:
                if message.outcome_state != PENDING:
                    continue  # it has timed out, or who asked is gone
                process._answering = message
                goes_on = self._handler(process, behaviour.call, message.request, message)
            elif type(message) is ProcessCast:
                goes_on = self._handler(process, behaviour.cast, message.message)
            elif type(message) is Order:
                message.action(process)
                goes_on = process._core is not None
            else:
                goes_on = self._handler(process, behaviour.message, message)
            if not goes_on:
                return
        if process._mail and "held" not in process._flags:
            process.make_ready()
        else:
            process._phase = "waiting"

    def _handler(self, process: LightProcess, handler: Any, *arguments: Any) -> bool:
        """Call a handler and deal with what it gives; whether the turn goes on."""
        try:
            value = handler(process, *arguments)
        except BaseException as error:  # noqa: BLE001 - the outermost loop: ``_raised`` decides
            return self._raised(process, error)
        if process._core is None:  # it was ended from within its own handler
            process._answering = None
            if isinstance(value, CoroutineType):
                value.close()
            return False
        if isinstance(value, CoroutineType):
            process._running = value
            return self._advance(process)
        return self._returned(process, value)

    def _returned(self, process: LightProcess, value: Any) -> bool:
        """Deal with the end of a handler; whether the turn goes on."""
        call, process._answering = process._answering, None
        if call is not None:
            if value is not NO_REPLY:
                call.reply(value)
            elif call.outcome_state == PENDING:
                process.owe(call)
        if "starting" in process._flags:
            self._started(process)
        if process._flags & {"coroutine", "stopping"} and process._core is not None:
            self.hooks.process_ended(process, None)
            return False
        return process._core is not None

    def _started(self, process: LightProcess) -> None:
        process._flags.discard("starting")
        if "tells_start" in process._flags:
            process._flags.remove("tells_start")
            self.hooks.process_started(process)

    def _raised(self, process: LightProcess, error: BaseException) -> bool:
        """Deal with what a handler raised; whether the turn goes on. Raises KeyboardInterrupt again."""
        if isinstance(error, KeyboardInterrupt):
            process._phase = "waiting"
            raise error
        call, process._answering = process._answering, None
        if process._core is None:
            return False
        if call is not None and is_expected(error):
            call.fail(error)
            if "stopping" in process._flags:
                self.hooks.process_ended(process, None)
                return False
            return True
        process._answering = call
        self.hooks.process_ended(process, error)
        return False

    def _advance(self, process: LightProcess) -> bool:
        """Run the coroutine on; whether it has ended and the turn goes on."""
        running, process._awaited = process._running, None
        assert running is not None, "a process without a coroutine cannot go on with it"
        try:
            awaited = running.send(None)
        except StopIteration as end:
            process._running = None
            if process._core is None:
                process._answering = None
                return False
            return self._returned(process, end.value)
        except BaseException as error:  # noqa: BLE001 - the outermost loop: ``_raised`` decides
            process._running = None
            return self._raised(process, error)
        if process._core is None:
            self._close(process, running)
            return False
        process._awaited = awaited
        if process._flags >= {"starting", "coroutine"}:
            self._started(process)  # its life has begun; an ``async def init`` has not ended yet
        if self.successor is not None:
            self._replace(process, awaited, self.successor)
        elif type(awaited) is Receive and awaited.process is process:
            if "stopping" in process._flags:
                self.hooks.process_ended(process, None)
            elif awaited.seen < len(process._mail) and "held" not in process._flags:
                process.make_ready()
            else:
                process._phase = "waiting"
        elif isinstance(awaited, Waiting):
            process._phase = "awaiting"
            if awaited.done:
                process.make_ready()
        else:
            process._phase = "awaiting"
            self.hooks.foreign_await(process, awaited)
        return False

    def _replace(self, process: LightProcess, awaited: Any, successor: CoroutineType[Any, Any, Any]) -> None:
        """Let *successor* go on in place of the coroutine that has just awaited a message."""
        self.successor = None
        if isinstance(awaited, Waiting):
            self.cancel(awaited)
            awaited.process = None
        before, process._running, process._awaited = process._running, successor, None
        if before is not None:
            self._close(process, before)
        if process._core is None:  # by what its ``finally`` blocks did
            self._close(process, successor)
        elif "stopping" in process._flags:
            self.hooks.process_ended(process, None)
        else:
            process.make_ready()

    def _close(self, process: LightProcess, running: CoroutineType[Any, Any, Any]) -> None:
        try:
            running.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - what its ``finally`` blocks raise goes to the hooks
            self.hooks.close_failed(process, error)


def _full(process: LightProcess) -> MailboxFull:
    return MailboxFull(
        f"{process.pid} has {len(process._mail)} messages waiting",
        found=f"its limit is {process._behaviour.limit}",
        hint="send less, or wait for answers",
    )
