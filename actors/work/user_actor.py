"""An actor of the user's in its worker: the object, and the loop in which its methods are called.

With ``max_concurrency`` 1 and no ``async def`` method, calls run in the main thread, between looks at the sockets. With
a coroutine method there is an event loop in the main thread: coroutines are its tasks. Other methods run there as
well, or, where more than one call may run, in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from types import FrameType
from typing import Any, NoReturn

from actorgrid import user_actor_context
from actorgrid.checkpoints import CheckpointPolicy, EnteredCheckpoint
from actorgrid.errors import BadRequest, NotSupported, TaskCancelled
from actorgrid.objects import here
from actorgrid.task_context import ATTEMPT_NUMBER
from actorgrid.transports.task_frames import encode_failure, encode_success
from actorgrid.transports.task_inputs import loads_with_inputs
from actorgrid.transports.user_actor_frames import CHECKPOINT_METHOD, READY_METHOD, MethodCall
from actorgrid.user_actor_context import MARK, ActorReference, CurrentActor, incarnation_of

from .actor_checkpoints import ActorCheckpoints
from .function_call import TimeIsUp, describe_failure
from .item_stream import ItemGrants
from .owned_checkpoints import Kept, OwnedCheckpoints
from .task_values import pack_value
from .user_actor_callers import Caller, Callers

SAVE_LOOK_S = 0.25
BATCH_S = 0.001  # calls that take less share one look at the sockets and one send


def begin(
    reference: ActorReference,
    max_concurrency: int,
    made: type[Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    policy: CheckpointPolicy | None = None,
    kept: Kept | None = None,
) -> UserActor:
    """Make the object, with the state that is *kept* of the incarnation before, if it saves any; what is raised is the
    end of the actor. The worker has it called then (``UserActor.serve``)."""
    path, host_id = _place_of(reference)
    incarnation = incarnation_of(os.environ.get(MARK, ""))
    os.environ[ATTEMPT_NUMBER] = str(incarnation)
    user_actor_context.begins(CurrentActor(reference, incarnation, path, host_id))
    thing = made(*args, **kwargs)
    checkpoints = None
    if policy is not None:
        checkpoints = OwnedCheckpoints(thing, CheckpointPolicy(*policy), incarnation, kept)
        checkpoints.load()
    return UserActor(reference, incarnation, max_concurrency, thing, path, host_id, checkpoints)


def _place_of(reference: ActorReference) -> tuple[str, str]:
    """Where the actor's socket is to be, and on which host: with its creator's, or in a folder of that name here.

    Raises NotSupported where nobody would find it.
    """
    store, host_id = here.whereabouts()
    folder = os.path.dirname(reference.path)
    is_elsewhere = bool(host_id and host_id != reference.host_id) or _has_own_sockets(store)
    if reference.host_id and store and is_elsewhere:
        folder = os.path.join(os.path.dirname(store), os.path.basename(folder))
    elif reference.made_afar_by:
        raise NotSupported(
            "an actor of a client on another machine runs on hosts with an object store", hint="set objects.enabled"
        )
    elif not os.path.isdir(folder):
        raise NotSupported(
            "the actor can run on the host of the client that made it alone, and got a worker on another",
            asked=folder,
            found=f"host {os.uname().nodename}, where that folder is not",
            hint="free some room on the client's host, or ask for what it has",
            actor_elsewhere=True,
        )
    return os.path.join(folder, os.path.basename(reference.path)), host_id


def _has_own_sockets(store: str) -> bool:
    """Whether we are kept apart, and have another folder of sockets than the host (isolation/own_sockets.py), which is
    the agent's: others come to us by the agent, and a folder that is not there yet is made."""
    try:
        return bool(store) and os.stat(os.path.dirname(store)).st_uid != os.geteuid()
    except OSError:
        return False


class UserActor:
    """The object and its callers."""

    def __init__(
        self,
        reference: ActorReference,
        incarnation: int,
        max_concurrency: int,
        thing: object,
        path: str = "",
        host_id: str = "",
        checkpoints: ActorCheckpoints | None = None,
    ) -> None:
        self._reference = reference
        self.checkpoints = checkpoints
        self._path = path or reference.path
        self._makes_folder = self._path != reference.path or _has_own_sockets(here.whereabouts().store)
        self.host_id = host_id
        self._thing = thing
        self._most = max_concurrency
        self._is_async = any(
            inspect.iscoroutinefunction(getattr(type(thing), name, None)) for name in reference.methods
        )
        self._threads = ThreadPoolExecutor(max_concurrency, "actorgrid-method") if max_concurrency > 1 else None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._bind(listener)
        listener.listen(128)
        self._epoll = select.epoll()
        self._callers = Callers(listener, self._epoll, reference.secret, incarnation)
        self._watched: Mapping[int, Callable[[], None]] = {}
        self._is_wanted: Callable[[], bool] = lambda: True
        self._flush_output: Callable[[], None] = lambda: None
        self._timed = False
        self.calls = 0

    def _bind(self, listener: socket.socket) -> None:
        folder = os.path.dirname(self._path)
        while True:
            if self._makes_folder:
                os.makedirs(folder, mode=0o700, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)  # of the incarnation before, which nobody listens at
            try:
                listener.bind(self._path)
                return
            except FileNotFoundError:
                if not self._makes_folder:
                    raise  # its creator is gone
                # Otherwise another actor of that creator has ended here just now, and taken the folder with it.

    def connect(self, grants: ItemGrants, send: Callable[[bytes], object], wait: Callable[[], None]) -> None:
        """Say how the creator is told of saved states (``OwnedCheckpoints.connect``), where it keeps them."""
        if isinstance(self.checkpoints, OwnedCheckpoints):
            self.checkpoints.connect(grants, send, wait)

    def serve(
        self, watched: Mapping[int, Callable[[], None]], is_wanted: Callable[[], bool], flush_output: Callable[[], None]
    ) -> int:
        """Be called until somebody says stop; gives how many calls there were.

        *watched*: descriptors of the worker, and what to call when one is ready. Raises TaskCancelled when
        *is_wanted* says no.
        """
        self._watched, self._is_wanted, self._flush_output = watched, is_wanted, flush_output
        for fd in watched:
            self._epoll.register(fd, select.EPOLLIN)
        before = signal.signal(signal.SIGALRM, self._time_is_up)
        try:
            if self._is_async or self._threads is not None:
                asyncio.run(_EventLoop(self, self._most, self._threads).serve())
            else:
                self._serve_in_turn()
        finally:
            signal.signal(signal.SIGALRM, before)
            self._callers.close()
            self._epoll.close()
            with contextlib.suppress(OSError):  # its creator may have cleared up already
                os.unlink(self._path)
            if self._makes_folder:
                with contextlib.suppress(OSError):  # others of that creator are here
                    os.rmdir(os.path.dirname(self._path))
        return self.calls

    @property
    def callers(self) -> Callers:
        """Who calls."""
        return self._callers

    @property
    def thing_type(self) -> type[Any]:
        """The class of the object."""
        return type(self._thing)

    @property
    def epoll(self) -> select.epoll:
        """What tells whom to listen to."""
        return self._epoll

    def _serve_in_turn(self) -> None:
        callers = self._callers
        while True:
            self.look(0 if callers.waiting else -1 if self.checkpoints is None else self.checkpoints.wait_s())
            self.check_wanted()
            if self.checkpoints is not None:
                self.checkpoints.look()
            callers.cancelled.clear()  # what runs here has ended by now
            until = monotonic() + BATCH_S
            while callers.waiting:
                caller, call = callers.next()
                callers.answer(caller, self.run(caller, call))
                self.called(call)
                if monotonic() > until:
                    break
            self.flush()
            if callers.stopping and not callers.waiting:
                return

    def look(self, timeout_s: float) -> None:
        """Take what the sockets have for us; wait for that, unless *timeout_s* is 0."""
        for fd, mask in self._epoll.poll(timeout_s):
            if not self._callers.ready(fd, mask) and fd in self._watched:
                self._watched[fd]()

    def check_wanted(self) -> None:
        """Raise TaskCancelled when our creator does not want us any more, or is gone."""
        if not self._is_wanted():
            raise TaskCancelled("nobody wants the actor any more")

    def flush(self) -> None:
        """Send answers, and what was printed."""
        self._flush_output()
        self._callers.flush()

    def run(self, caller: Caller, call: MethodCall) -> bytes:
        """Call a method that is no coroutine; its answer."""
        try:
            self.check(caller, call)
            value = self.invoke(call) if call.timeout_s is None else self._invoke_timed(call)
            if inspect.iscoroutine(value):
                value.close()
                _refuse_awaitable(call)
            return self.answer(caller, call, value)
        except BaseException as error:  # noqa: BLE001 - the outermost loop of a call: what it raises is its result
            if self._timed:
                self._stop_timer()  # the timer struck inside the clean-up
            return failure_of(error, call)

    def answer(self, caller: Caller, call: MethodCall, value: Any) -> bytes:
        """The answer to a call that gave a value. Raises UnpicklableResult."""
        space = here.current_space()
        body, gifts = pack_value(value, space if caller.objects else None)
        if space is not None:
            here.confirm(space)
        return encode_success(call.call_id, body, gifts)

    def check(self, caller: Caller, call: MethodCall) -> None:
        """Raise TaskCancelled for a call that was taken back before it began."""
        self.calls += 1
        if caller.cancelled and call.call_id in caller.cancelled:
            caller.cancelled.discard(call.call_id)
            raise TaskCancelled("cancelled before it started")

    def method(self, call: MethodCall) -> Callable[..., Any]:
        """The method that is called."""
        if call.method == READY_METHOD:
            return _none
        if call.method == CHECKPOINT_METHOD:
            return self._checkpoint
        if call.method.startswith("_") and call.method not in self._reference.methods:
            raise AttributeError(f"{call.method!r} is not for callers: it is not public")
        found: Callable[..., Any] = getattr(self._thing, call.method)
        return found

    def called(self, call: MethodCall) -> None:
        """Take note of a call that has ended, for which the state may have changed."""
        if self.checkpoints is not None and call.method not in (READY_METHOD, CHECKPOINT_METHOD):
            self.checkpoints.called()

    def _checkpoint(self) -> EnteredCheckpoint:
        return self._kept().now()

    def _kept(self) -> ActorCheckpoints:
        if self.checkpoints is None:
            raise NotSupported(
                "this actor keeps no checkpoints",
                asked=self._reference.class_name,
                hint="@actorgrid.actor(checkpoint_every=0), with methods save() and load(state)",
            )
        return self.checkpoints

    def begin_checkpoint(self) -> Callable[[], EnteredCheckpoint]:
        """Save the state now; what waits until the job has it. Raises as ``ActorCheckpoints.save``, NotSupported."""
        kept = self._kept()
        return partial(kept.wait, kept.save())

    def invoke(self, call: MethodCall) -> Any:
        """The value of a call, or the coroutine that gives it. Raises what unpickling and the method raise."""
        args, kwargs = loads_with_inputs(call.args, call.inputs)
        return self.method(call)(*args, **kwargs)

    def _invoke_timed(self, call: MethodCall) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return self.invoke(call)  # its limit is the loop's to keep
        self._timed = True
        signal.setitimer(signal.ITIMER_REAL, float(call.timeout_s or 0.0), 1.0)
        try:
            return self.invoke(call)
        finally:
            self._stop_timer()

    def _stop_timer(self) -> None:
        self._timed = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _time_is_up(self, _number: int, _frame: FrameType | None) -> None:
        if self._timed:
            raise TimeIsUp


def failure_of(error: BaseException, call: MethodCall) -> bytes:
    """The answer to a call that raised."""
    if type(error) is TaskCancelled:
        return encode_failure(call.call_id, error)
    return encode_failure(call.call_id, *describe_failure(error, call.timeout_s))


def _none() -> None:
    """Nothing: whoever gets that knows that the actor is there."""


def _refuse_awaitable(call: MethodCall) -> NoReturn:
    raise BadRequest(
        f"{call.method} gave a coroutine, but is no async def of the class itself",
        hint="make one method of the class an async def: then the actor has an event loop",
    )


class _EventLoop:
    """Runs an actor's calls side by side, as many as it may."""

    def __init__(self, actor: UserActor, most: int, threads: ThreadPoolExecutor | None) -> None:
        self._actor = actor
        self._callers = actor.callers
        self._most = most
        self._threads = threads
        self._running: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._flushes = False
        self._starts = False

    async def serve(self) -> None:
        """Serve until the actor is to end."""
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._actor.epoll.fileno(), self._look)
        try:
            self._look()
            self._save_in_time()
            await self._over
            self._actor.flush()
        finally:
            self._loop.remove_reader(self._actor.epoll.fileno())
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> None:
        try:
            self._actor.look(0)
            self._actor.check_wanted()
        except BaseException as error:  # noqa: BLE001 - serve() raises it
            if not self._over.done():
                self._over.set_exception(error)
            return
        while self._callers.cancelled:
            caller, call_id = self._callers.cancelled.popleft()
            task = self._running.get((id(caller), call_id))
            if task is not None:
                task.cancel()
        self._start()
        self._flush_soon()

    def _save_in_time(self) -> None:
        """Save the state when it is time, as long as the loop runs."""
        kept = self._actor.checkpoints
        if kept is not None and kept.is_timed:
            kept.look()
            self._loop.call_later(SAVE_LOOK_S, self._save_in_time)

    def _start(self) -> None:
        self._starts = False
        until = monotonic() + BATCH_S
        while self._callers.waiting and len(self._running) < self._most:
            if monotonic() > until:
                if not self._starts:
                    self._starts = True
                    self._loop.call_soon(self._start)
                break
            caller, call = self._callers.next()
            if self._is_quick(call):
                self._callers.answer(caller, self._actor.run(caller, call))
                self._actor.called(call)
                self._flush_soon()
                continue
            key = id(caller), call.call_id
            task = self._running[key] = self._loop.create_task(self._run(caller, call))
            task.add_done_callback(lambda _, key=key: self._ended(key))  # type: ignore[misc]
        self._end_if_done()

    def _is_quick(self, call: MethodCall) -> bool:
        """Whether the call runs in the loop's own thread, while nothing else does."""
        if call.method == CHECKPOINT_METHOD or (self._threads is not None and call.method != READY_METHOD):
            return False
        return not inspect.iscoroutinefunction(getattr(self._actor.thing_type, call.method, None))

    async def _run(self, caller: Caller, call: MethodCall) -> None:
        try:
            self._actor.check(caller, call)
            async with asyncio.timeout(call.timeout_s) as limit:
                value = await self._value(call)
            frame = self._actor.answer(caller, call, value)
        except BaseException as error:  # noqa: BLE001 - the outermost loop of a call: what it raises is its result
            if isinstance(error, TimeoutError) and call.timeout_s is not None and limit.expired():
                error = TimeIsUp()
            elif isinstance(error, asyncio.CancelledError):
                error = TaskCancelled("the call was asked to stop, and did", asked=call.method)
            frame = failure_of(error, call)
        self._callers.answer(caller, frame)
        self._actor.called(call)

    async def _value(self, call: MethodCall) -> Any:
        if call.method == CHECKPOINT_METHOD:
            # Saved here, between two steps of coroutines; waited for in a thread of its own, as others go on.
            return await asyncio.to_thread(self._actor.begin_checkpoint())
        if inspect.iscoroutinefunction(getattr(self._actor.thing_type, call.method, None)):
            return await self._actor.invoke(call)
        # Not cancelled with its task: a thread goes on, and keeps one of the actor's threads until it ends.
        return await asyncio.shield(self._loop.run_in_executor(self._threads, self._actor.invoke, call))

    def _ended(self, key: tuple[int, int]) -> None:
        self._running.pop(key, None)
        self._flush_soon()
        self._start()

    def _end_if_done(self) -> None:
        if self._callers.stopping and not self._callers.waiting and not self._running and not self._over.done():
            self._over.set_result(None)

    def _flush_soon(self) -> None:
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        self._actor.flush()
        if self._callers.waiting:
            self._start()  # one whose caller had not read what it was told
