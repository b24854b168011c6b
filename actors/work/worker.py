"""The worker: a process that runs users' Python, outside the agent's trust.

It holds no descriptor but 0, 1, 2, its listening socket and a control socket to its shim; no token of the agent,
no key. Over the control socket come, as frames, the sessions it may serve::

    ["session", {"secret", "session", "env", "gpu_uuids", "title"}]      -> the next client must know the secret
    ["close"]                                                            -> drop the client, answer ["idle"]

and the worker reports ["spoiled", reason] when it should not be used again.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle  # nosec B403 - only after the client's secret was checked
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from types import CoroutineType, FrameType
from typing import Any, NoReturn

from actorgrid import task_context
from actorgrid.errors import ActorGridError, MalformedBody, PeerRefused, TaskCancelled, TransportError
from actorgrid.import_environment import ImportEnvironment, of_plain, take
from actorgrid.task_context import ATTEMPT_NUMBER, RunningCall
from actorgrid.transports.frames import FrameDecoder, encode_frame
from actorgrid.transports.kept_stream import Keep, parse_keep
from actorgrid.transports.task_frames import (
    ENVIRONMENT_BUILDING,
    ENVIRONMENT_HERE,
    ENVIRONMENT_MISSING,
    CancelTask,
    ClientHello,
    EnvironmentFrame,
    InputValue,
    MoreItems,
    Recall,
    TaskFrame,
    TaughtFunction,
    WorkingDirFrame,
    encode_environment,
    encode_failure,
    encode_item,
    encode_output,
    encode_recalled,
    encode_refused,
    encode_success,
    encode_welcome,
    encode_working_dir_here,
    parse_client_frame,
)
from actorgrid.transports.task_inputs import loads_with_inputs

from .async_calls import AsyncCalls
from .built_environments import BuildProgress
from .client_connection import ClientConnection
from .client_hello import check_hello, check_secret
from .environment import PYTHON, use_environment
from .function_call import TimeIsUp, describe_end
from .item_stream import ItemGrants
from .kept_connections import EXIT_TOO_LATE, READ_BYTES, KeptConnections
from .recall_watch import RecallWatch
from .task_output import FLUSH_AFTER_S, TaskOutput
from .task_values import Gifts, pack_value
from .user_actor import UserActor
from .worker_objects import WorkerObjects
from .worker_switch import WorkerHost, WorkerSwitch
from .working_dir_spec import enter_working_dir
from .working_dirs import WorkingDirs

HELLO_BYTES = 64 * 1024  # a stranger may make us hold no more than this
FLUSH_BYTES = 64 * 1024
HANG_GRACE_S = 5.0  # a task deaf to its timer that long is stuck in C: the whole worker leaves


class Worker:
    """The loop of a pool worker. One client at a time; each new client needs a new secret from the agent."""

    def __init__(
        self, worker_id: str, listener: socket.socket, control: socket.socket, host: WorkerHost | None = None
    ) -> None:
        self.worker_id = worker_id
        folder = None if host is None else host.spec["worker"].get("working_dirs")
        self._working_dirs = WorkingDirs(Path(folder)) if folder is not None else None
        self._is_over: Callable[[], bool] = host.deadline.is_over if host is not None else lambda: False
        self._switch = WorkerSwitch(host)
        self._objects = WorkerObjects(None if host is None else host.spec["worker"])
        self._environ: dict[str, str] = {}  # of the session
        self._imports: ImportEnvironment | None = None  # what the client said of itself
        self.last_flush = 0.0
        self._listener = listener
        self._control = control
        self._control_decoder = FrameDecoder()
        self._client: ClientConnection | None = None
        # Held to read from the client and to write to it: the main thread does, and while it runs a task, the watch.
        self._io = threading.RLock()
        self._kept = KeptConnections(self._is_over)
        self._watch = RecallWatch(self._client_fd, self._flush_during_task, self._listen_during_task)
        self._task_id = 0
        self._timed = False
        self._is_late = False  # the coroutine that runs was cancelled because its time was up
        self._async = AsyncCalls()
        self._grants = ItemGrants()
        self._secret, self._session = b"", ""
        self._gpu_uuids: list[str] = []
        self._tees: list[TaskOutput] = []
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._poll.register(control, select.POLLIN)
        listener.setblocking(False)

    def run(self) -> NoReturn:
        """Serve clients until the shim closes the control socket."""
        self._tees = [TaskOutput(self, "stdout", sys.stdout), TaskOutput(self, "stderr", sys.stderr)]
        sys.stdout, sys.stderr = self._tees
        signal.signal(signal.SIGALRM, self._time_is_up)
        os.register_at_fork(after_in_child=self._forked)
        while True:
            client = self._client
            if client is not None and client.waiting:
                self._run_waiting(client)
                continue
            for fd, _ in self._poll.poll():
                if self._client is not None and fd == self._client.socket.fileno():
                    self._read_client(self._client)
                    if self._client is not None and not self._client.waiting:
                        self.flush_replies()  # all was recalled: there is no task with whose result the answer goes
                elif fd == self._control.fileno():
                    self._read_control()
                elif fd == self._listener.fileno():
                    self._accept()

    # -- control

    def _read_control(self) -> None:
        data = self._control.recv(READ_BYTES)
        if not data:
            os._exit(0)
        for frame in self._control_decoder.feed(data):
            match frame:
                case ["session", dict(session)]:
                    self._begin_session(session)
                case ["close"]:
                    self._drop_client()
                    self._secret = b""
                    self._control.sendall(encode_frame(["idle"]))

    def _begin_session(self, session: dict[str, Any]) -> None:
        self._drop_client()
        self._environ = session["env"]
        use_environment(self._environ)
        self._secret = session["secret"].encode()
        self._session = session["session"]
        self._gpu_uuids = list(session["gpu_uuids"])
        self._control.sendall(encode_frame(["ready", self._session]))

    # -- the client

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        if self._client is not None and self._client.welcome:
            self._refuse(connection, PeerRefused("the worker serves another client"))
            connection.close()
            return
        self._drop_client()  # one that said nothing yet gives way
        connection.setblocking(True)
        self._client = ClientConnection(connection)
        self._poll.register(connection, select.POLLIN)

    def _refuse(self, connection: socket.socket, error: ActorGridError) -> None:
        with suppress(OSError):  # it left, or does not read: there is nobody to tell
            connection.send(encode_refused(error), socket.MSG_DONTWAIT)

    def _drop_client(self) -> None:
        with self._io:
            client, self._client = self._client, None
        if client is not None:
            self._poll.unregister(client.socket)
            client.socket.close()
            if client.kept:
                self._kept.leave_listener()
                self._poll.register(self._listener, select.POLLIN)
            if client.welcome:
                self._secret = b""  # a secret is good for one client
                for tee in self._tees:
                    tee.flush()
                client.functions.clear()
                client.space = None
                self._objects.leave()
                gc.collect()

    def _read_client(self, client: ClientConnection) -> None:
        try:
            with self._io:
                # The watch may have read it after we were told that there is something.
                data = client.socket.recv(READ_BYTES if client.welcome else HELLO_BYTES, socket.MSG_DONTWAIT)
                for frame in client.decoder.feed(data):
                    self._take(client, frame)
                if not client.welcome and client.decoder.pending_bytes > HELLO_BYTES:
                    raise PeerRefused("the first frame must be a hello, and short")
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        except (ActorGridError, TransportError) as error:
            self._give_up(client, error)
            return
        if not data:
            self._drop_client()

    def _give_up(self, client: ClientConnection, error: ActorGridError | TransportError) -> None:
        self._refuse(client.socket, error)
        if client.welcome:
            self._control.sendall(encode_frame(["spoiled", f"its client broke protocol: {error.message}"]))
        self._drop_client()

    def _keep(self, client: ClientConnection, keep: Keep) -> None:
        """Go on over one end of a socket pair, as the client is on another machine and may come back."""
        check_secret(keep, self._secret)
        fd = client.socket.fileno()
        client.socket = self._kept.adopt(client.socket, keep)  # which leaves all as it was where it refuses
        client.decoder, client.kept = FrameDecoder(), True
        self._poll.unregister(fd)
        self._poll.register(client.socket, select.POLLIN)
        self._poll.unregister(self._listener)
        self._kept.listen(self._listener)

    def _take(self, client: ClientConnection, frame: list[Any]) -> None:
        if not (client.welcome or client.kept) and (keep := parse_keep(frame)) is not None:
            self._keep(client, keep)
            return
        message = parse_client_frame(frame)
        if not client.welcome:
            if not isinstance(message, ClientHello):
                raise PeerRefused("the first frame must be a hello")
            check_hello(message, self._secret)
            elsewhere = message.environment is not None and not take(message.environment)
            self._imports = message.environment
            client.welcome = True
            client.space = self._objects.serve(message.objects)
            at_store = client.space is not None
            welcome = encode_welcome(self.worker_id, PYTHON, os.getpid(), self._gpu_uuids, elsewhere, at_store)
            client.socket.sendall(welcome)
        elif isinstance(message, TaskFrame):
            client.queue(message)
        elif isinstance(message, InputValue):
            client.inputs.arrived(message)
        elif isinstance(message, TaughtFunction):
            client.learn(message)
        elif isinstance(message, CancelTask):
            client.cancel(message.task_id)
            self._async.stop(message.task_id)
            self._grants.wake()
        elif isinstance(message, MoreItems):
            self._grants.grant(message.task_id, message.granted)
        elif isinstance(message, WorkingDirFrame):
            client.reply(encode_working_dir_here(enter_working_dir(message, self._working_dirs)))
            self.flush_replies()
        elif isinstance(message, EnvironmentFrame):
            self._enter_environment(client, message)
        elif isinstance(message, Recall):
            client.reply(encode_recalled(client.give_back()))
        else:
            raise MalformedBody("a second hello")

    # -- another Python

    def _enter_environment(self, client: ClientConnection, wanted: EnvironmentFrame) -> None:
        """Go on in the Python of an environment; then the client is told that it is here. Raises as the switch does."""
        if self._switch.is_in(wanted.digest):
            use_environment(self._switch.again(self._environ))
            self._say_of_environment(client, ENVIRONMENT_HERE, PYTHON)
            return
        progress = BuildProgress(
            lambda line: self._say_of_environment(client, ENVIRONMENT_BUILDING, line[:2000]),
            lambda: self._is_still_there(client),
        )
        found = self._switch.prepare(wanted, self._environ, progress)
        if found is None:
            self._say_of_environment(client, ENVIRONMENT_MISSING, "")
            return
        if client.functions or client.waiting:
            raise MalformedBody("a client asks for an environment before any task, and waits for it")
        state = {
            "secret": self._secret,
            "session": self._session,
            "gpu_uuids": self._gpu_uuids,
            "environ": self._environ,
            "imports": None if self._imports is None else self._imports.to_plain(),
            "control_held": self._control_decoder.held,
            "objects": self._objects.to_plain(),
        }
        ends = {"listener": self._listener, "control": self._control, "client": client.socket}
        with self._kept.handing_over() as (state["kept"], kept_ends):
            self._switch.go(found, wanted.digest, self._environ, state, {**ends, **kept_ends})

    def _say_of_environment(self, client: ClientConnection, state: str, text: str) -> None:
        client.reply(encode_environment(state, text))
        self.flush_replies()

    def _is_still_there(self, client: ClientConnection) -> bool:
        """Whether the client, for which an environment is built, is served still."""
        self._look(client)
        return self._client is client

    def take_up(self, state: dict[str, Any], ends: dict[str, socket.socket]) -> None:
        """Be, in this Python, the worker that the state was of: its client waits for word of it."""
        self._secret, self._session = state["secret"], state["session"]
        self._gpu_uuids, self._environ = state["gpu_uuids"], state["environ"]
        self._switch.arrived(state)
        imports = of_plain(state["imports"])
        if imports is not None:
            take(imports)
        self._control_decoder.feed(state["control_held"])
        connection = ClientConnection(ends["client"])
        connection.welcome = True
        connection.space = self._objects.take_up(state["objects"])
        self._client = connection
        self._poll.register(connection.socket, select.POLLIN)
        if self._kept.take_over(state["kept"], ends, self._listener):
            connection.kept = True
            self._poll.unregister(self._listener)
        self._say_of_environment(connection, ENVIRONMENT_HERE, PYTHON)

    # -- tasks

    def _run_waiting(self, client: ClientConnection) -> None:
        """Run what was read; look at the sockets again in between once that costs little beside the task."""
        looked = monotonic()
        self._watch.begins()
        while self._client is client:
            try:
                task = client.next()
            except IndexError:
                break
            self._watch.next_task()
            self._run_one(client, task)
            now = monotonic()
            if client.replies_bytes > FLUSH_BYTES or now - self.last_flush > FLUSH_AFTER_S:
                self.flush_replies()
            if now - looked > FLUSH_AFTER_S:
                looked = now
                self._look(client)
        if self._watch.ends():
            with self._io:
                pass  # what the watch is reading just now is there when we look again; from here on it reads nothing
        self.flush_replies()
        if client.failure is not None and self._client is client:
            self._give_up(client, client.failure)

    def _look(self, client: ClientConnection) -> None:
        for fd, _ in self._poll.poll(0):
            if fd == self._control.fileno():
                self._read_control()
            elif fd == self._listener.fileno():
                self._accept()
            elif self._client is client and fd == client.socket.fileno() and client.has_capacity():
                self._read_client(client)

    # -- what the watch does while a task has the main thread

    def _forked(self) -> None:
        """Stand alone in a process that a task has forked: the thread is not there, and may have held the lock."""
        self._io = threading.RLock()
        self._watch.forget()

    def _client_fd(self) -> int:
        client = self._client
        return -1 if client is None else client.socket.fileno()

    def _flush_during_task(self) -> None:
        """Send what the socket takes now of results that are there; what is left is sent later."""
        with self._io:
            client = self._client
            if client is None or not (client.replies or client.unsent):
                return
            if self._is_over():
                os._exit(EXIT_TOO_LATE)
            client.replies_bytes = 0
            client.unsent += client.drain_replies()
            try:
                del client.unsent[: client.socket.send(client.unsent, socket.MSG_DONTWAIT)]
            except OSError:
                return  # it does not read now, or is gone: the main thread sees to it

    def _listen_during_task(self) -> bool:
        """Take what the client says, and answer; ``False`` when there is nothing to listen to for now."""
        with self._io:
            client = self._client
            if client is None or not self._watch.is_busy or not client.has_capacity():
                return False
            try:
                data = client.socket.recv(READ_BYTES, socket.MSG_DONTWAIT)
                for frame in client.decoder.feed(data):
                    self._take(client, frame)
            except BlockingIOError:
                return True
            except OSError:
                return False
            except (ActorGridError, TransportError) as error:
                client.failure = error
                client.waiting.clear()
                return False
            self._flush_during_task()
            return bool(data)  # its end is found again by the main thread

    def _run_one(self, client: ClientConnection, task: TaskFrame) -> None:
        task_id = task.task_id
        if client.cancelled and task_id in client.cancelled:
            client.cancelled.discard(task_id)
            client.reply(encode_failure(task_id, TaskCancelled("cancelled before it started")))
            return
        self._task_id, self._is_late = task_id, False
        call = RunningCall((self._session, task_id), task.timeout_s, client.cancelled)
        task_context.begins(call)
        if task.about is not None:
            call.name, call.retries_left, call.parent, _ = task.about
        if task.attempt_number != 1:
            os.environ[ATTEMPT_NUMBER] = str(task.attempt_number)
        try:
            function = client.function(task.fn_id)
            if task.inputs:
                args, kwargs = loads_with_inputs(task.args, client.inputs.take(task))
            else:
                args, kwargs = pickle.loads(task.args)  # nosec B301 - from the authenticated owner of this worker
            call.function_name = getattr(function, "__name__", "")
            if task.timeout_s is None:
                value = function(*args, **kwargs)
                if type(value) is CoroutineType or task.about is not None:
                    value = self._run_on(client, task, value)
            else:
                value = self._call_timed(function, args, kwargs, client, task)
            data, gifts = pack_value(value, client.space)
            client.inputs.made(task_id, data)
            reply = encode_success(task_id, data, gifts)
        except BaseException as error:  # noqa: BLE001 - the outermost loop of a task: what it raises is its result
            if self._timed:
                self._stop_timer()  # the timer struck inside the clean-up
            failed = describe_end(error, task.timeout_s, self._is_late, task_id in client.cancelled)
            reply = encode_failure(task_id, *failed)
        task_context.begins(None)
        if client.space is not None:
            self._objects.confirm(client.space)
        client.cancelled.discard(task_id)
        if task.attempt_number != 1:
            os.environ[ATTEMPT_NUMBER] = "1"
        for tee in self._tees:
            if tee._held:
                tee.flush()
        client.reply(reply)

    def _call_timed(self, function: Any, args: Any, kwargs: Any, client: ClientConnection, task: TaskFrame) -> Any:
        timeout_s = float(task.timeout_s or 0.0)
        # Repeats, in case the user's code swallows the first; the C watchdog is for code that never comes back.
        self._timed = True
        signal.setitimer(signal.ITIMER_REAL, timeout_s, 1.0)
        faulthandler.dump_traceback_later(timeout_s + HANG_GRACE_S, exit=True, file=2)
        try:
            return self._run_on(client, task, function(*args, **kwargs))
        finally:
            self._stop_timer()

    def _run_on(self, client: ClientConnection, task: TaskFrame, value: Any) -> Any:
        """What a call gave, with a coroutine run to its end; of a stream, whose items are sent, how many there were."""
        task_id, count = task.task_id, 0
        if type(value) is CoroutineType:
            value = self._async.run(value, task_id, task_id in client.cancelled)
        if task.about is None or not task.about.window:
            return value
        if type(value) is UserActor:
            return self._serve(client, task_id, value)
        items = self._async.iterate(value, task_id) if hasattr(value, "__anext__") else iter(value)
        self._grants.begin(task_id, task.about.window)
        try:
            for item in items:
                self._give_item(client, task_id, *pack_value(item, client.space))
                count = self._grants.give()
                self._await_grant(client, task_id)
        finally:
            if hasattr(items, "close"):
                items.close()
        return count

    def _serve(self, client: ClientConnection, task_id: int, actor: UserActor) -> int:
        """Let an actor be called until nobody wants it any more; one item says that it can be, and on which host."""
        self._control.sendall(encode_frame(["spoiled", "it held an actor of the user's"]))
        self._grants.begin(task_id, 1)
        give, wait = partial(self._give_item, client, task_id), partial(self._await_grant, client, task_id)
        actor.connect(self._grants, give, wait)
        give(actor.host_id.encode())

        def is_wanted() -> bool:
            return self._client is client and client.failure is None and task_id not in client.cancelled

        def flush() -> None:
            for tee in self._tees:
                if tee._held:
                    tee.flush()
            self.flush_replies()

        watched = {
            client.socket.fileno(): lambda: self._read_client(client),
            self._control.fileno(): self._read_control,
        }
        return actor.serve(watched, is_wanted, flush)

    def _give_item(self, client: ClientConnection, task_id: int, body: bytes, gifts: Gifts | None = None) -> None:
        client.reply(encode_item(task_id, body, gifts or ()))
        self.flush_replies()

    def _await_grant(self, client: ClientConnection, task_id: int) -> None:
        """Wait until the client wants another item. Raises TaskCancelled when it wants none any more, or is gone."""
        while self._client is client and client.failure is None and task_id not in client.cancelled:
            if not self._grants.is_used_up:
                return
            for fd in self._grants.wait(client.socket, self._control):
                if fd == self._control.fileno():
                    self._read_control()
                elif self._client is client:
                    self._read_client(client)
        raise TaskCancelled("nobody takes more of the stream")

    def _stop_timer(self) -> None:
        self._timed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()

    def _time_is_up(self, _number: int, _frame: FrameType | None) -> None:
        if not self._timed:
            return
        if not self._is_late and self._async.stop(self._task_id):
            self._is_late = True  # a coroutine is cancelled first, so that it can clean up
            return
        raise TimeIsUp

    # -- replies

    def add_output(self, stream: str, data: bytes) -> None:
        """Queue an output frame for the client whose task is running, if there is one."""
        if self._client is not None and self._client.welcome:
            self._client.reply(encode_output(self._task_id, stream, data))

    def flush_replies(self) -> None:
        """Send what is queued, however long the client takes to read it.

        What it sends meanwhile is read ahead (up to the bounds), so that one that sends a batch before it
        reads any result cannot lock the two of us up.
        """
        self.last_flush = monotonic()
        client = self._client
        if client is None or not (client.replies or client.unsent):
            return
        if self._is_over():
            os._exit(EXIT_TOO_LATE)  # we were paused past our deadline: others may have begun what we did
        try:
            with self._io:
                client.replies_bytes = 0
                data = client.drain_replies()
                if client.unsent:
                    data = bytes(client.unsent) + data
                    client.unsent.clear()
                self._send(client, memoryview(data))
        except OSError:
            if self._client is client:
                self._drop_client()

    def _send(self, client: ClientConnection, data: memoryview) -> None:
        while data:
            try:
                data = data[client.socket.send(data, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                reads = select.POLLIN if client.has_capacity() else 0
                both = select.poll()
                both.register(client.socket, select.POLLOUT | reads)
                both.register(self._control, select.POLLIN)
                for fd, events in both.poll():
                    if fd == self._control.fileno():
                        self._read_control()
                    elif events & select.POLLIN:
                        self._read_client(client)
                if self._client is not client:
                    return


def serve(worker_id: str, listener: socket.socket, control: socket.socket, host: WorkerHost | None = None) -> NoReturn:
    """Be a pool worker. Without a *host* it is never late, and takes neither working directories nor environments."""
    faulthandler.enable(file=2)  # what a task was doing when it crashed Python is the last that its worker says
    Worker(worker_id, listener, control, host).run()
