"""What a session client and its leased worker say to each other, and what a function job leaves behind.

Client to worker::

    ["hello", {"version", "secret", "python", "session"}]   first, and once; may have "environment", where the client
                                                             is, and "objects", its space of the object store
    ["function", fn_id, code]                                fn_id: 16 bytes of the caller's choice; code: cloudpickle
    ["task", task_id, fn_id, args, timeout_s | nil]          args: cloudpickle of (args, kwargs)
    ["task", task_id, fn_id, args, timeout_s | nil, number]  an attempt after the first: only to who "numbers_attempts"
    ["value", key, body]                                     a pickled value that the next task needs: only to who
                                                             "takes_values"; so is the next
    ["task", task_id, fn_id, args, timeout_s | nil, number, [key]]  a task with inputs (task_inputs.py): keys of values
                                                             sent just before, or of tasks whose results it keeps
    ["task", task_id, fn_id, args, timeout_s | nil, number, [key], about]   as TaskAbout: only to who "takes_about"
    ["cancel", task_id]                                      not started: is cancelled; running: is told so
    ["more", task_id, count]                                 of a stream: so many items more may come
    ["working_dir", digest, archive | nil]                   go there; with nil: if it is on that host. Before any task
    ["environment", digest, spec | nil]                      go on in that Python environment, built of its spec if need
                                                             be; with nil: if it is on that host. Before any task
    ["recall"]                                               all that have not started: only to who "answers_recalls"

Worker to client::

    ["welcome", {"worker_id", "python", "pid", "gpu_uuids"}] and, true: "numbers_attempts", "answers_recalls",
                                                             "takes_values", "takes_about"; where so, "elsewhere",
                                                             "keeps_objects"
    ["refused", error]                                       instead of a welcome
    ["result", task_id, status, body]                        in the order the tasks ended
    ["result", task_id, status, body, [gift]]                with what is kept in the object store for it: only to who
                                                             said "objects", as are items with gifts
    ["working_dir", here]                                    whether it has gone there; if not, it needs the archive
    ["environment", state, text]                             "missing": it needs the spec; "building": a line of that;
                                                             "here": the worker runs that Python now
    ["recalled", [task_id]]                                  have not started and never will here; also while one runs
    ["output", task_id, "stdout" | "stderr", bytes]          before the result of that task
    ["item", task_id, body]                                  of a stream, before the result: as many as it was granted
    ["item", task_id, body, [gift]]

Each task gets exactly one answer: its result, or its id in a ``recalled``.

A result with status OK has the pickled value as its body; with status FAILED the body is msgpack
``{"error": ActorGridError.to_dict(), "exception": pickled exception | nil}``. A client unpickles only what comes
from its own worker; nothing else of the cluster unpickles any of it.

A worker keeps the last ``MAX_FUNCTIONS`` functions it was sent. A task whose function it no longer has is answered
with UnknownKey: send the function again, then the task. The same goes for inputs that it does not have (any more).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from actorgrid.digests import is_digest
from actorgrid.errors import ActorGridError, MalformedBody, error_from_dict
from actorgrid.import_environment import ImportEnvironment, of_plain
from actorgrid.task_context import SESSION_RETRIES

from .frames import MAX_FRAME_BYTES, encode_frame
from .object_frames import SECRET_BYTES

PROTOCOL_VERSION = 1
ENVIRONMENT_MISSING, ENVIRONMENT_BUILDING, ENVIRONMENT_HERE = "missing", "building", "here"
ENVIRONMENT_STATES = (ENVIRONMENT_MISSING, ENVIRONMENT_BUILDING, ENVIRONMENT_HERE)
OK, FAILED = 0, 1
FN_ID_BYTES = 16
MAX_FUNCTIONS = 256
MAX_BODY_BYTES = MAX_FRAME_BYTES - 1024
MAX_TASK_ID = 2**63 - 1
MAX_ATTEMPT_NUMBER = 2**31 - 1
MAX_TEXT_CHARS = 200
MAX_RETRIES = 100
MAX_WINDOW = 1024


class ObjectsOfClient(NamedTuple):
    """A client's space of the object store, where what its tasks make is kept."""

    secret: bytes
    home: str
    """The host that it is on."""


class ClientHello(NamedTuple):
    """The first frame of a client."""

    version: int
    secret: str
    python: str
    session: str
    environment: ImportEnvironment | None = None
    """Where the client is and imports from: taken over by a worker on its machine. Earlier versions do not say."""
    objects: ObjectsOfClient | None = None
    """Earlier versions have none."""


class TaughtFunction(NamedTuple):
    """A function that later tasks name by its id."""

    fn_id: bytes
    code: bytes


class TaskAbout(NamedTuple):
    """What a task can ask about itself, beyond what every call says."""

    name: str = ""
    """What its submitter called it; empty: as its function is."""
    retries_left: int = SESSION_RETRIES
    parent: str = ""
    """The id of the task that submitted it; empty: it was submitted outside of work."""
    window: int = 0
    """Of a stream: how many items may come before "more" are granted; 0: its value is wanted, not its items."""


class TaskFrame(NamedTuple):
    """One call."""

    task_id: int
    fn_id: bytes
    args: bytes
    timeout_s: float | None
    attempt_number: int = 1
    inputs: tuple[int, ...] = ()
    """The keys of the values that its arguments name."""
    about: TaskAbout | None = None


class InputValue(NamedTuple):
    """A value that the next task needs."""

    key: int
    body: bytes


class CancelTask(NamedTuple):
    """Asks not to start a task; one that runs is told that its value is not wanted any more."""

    task_id: int


class MoreItems(NamedTuple):
    """Grants further items of a stream."""

    task_id: int
    granted: int


class Recall(NamedTuple):
    """Asks for all tasks back that have not started."""


class WorkingDirFrame(NamedTuple):
    """Asks the worker to go to a working directory, by the SHA-256 of its archive."""

    digest: str
    archive: bytes | None


class EnvironmentFrame(NamedTuple):
    """Asks the worker to go on in a Python environment, by the SHA-256 of its spec; with the spec, to build it."""

    digest: str
    spec: bytes | None


class ClientWelcome(NamedTuple):
    """The worker takes this client."""

    worker_id: str
    python: str
    pid: int
    gpu_uuids: list[str]
    numbers_attempts: bool = False
    """Whether it takes the number of an attempt. A worker that was started by an earlier version does not."""
    answers_recalls: bool = False
    """Whether it gives tasks back that it has not started. A worker that was started by an earlier version does not."""
    takes_values: bool = False
    """Whether it knows inputs of tasks. A worker that was started by an earlier version does not."""
    takes_about: bool = False
    """Whether it takes what is said about a task, and tells it when it is cancelled. An earlier version does not."""
    elsewhere: bool = False
    """Whether it is on another machine than the client, as far as that said where it is."""
    keeps_objects: bool = False
    """Whether it is at a store, and so reads the client's large values by itself: else they are brought along."""


class ClientRefused(NamedTuple):
    """The worker does not take this client; the connection closes."""

    error: ActorGridError


class Result(NamedTuple):
    """The end of a task. ``body``: see the head of this module."""

    task_id: int
    status: int
    body: bytes
    gifts: tuple[Any, ...] = ()
    """What is kept in the object store for who gets it, as ``actorgrid.objects`` reads it."""


class Recalled(NamedTuple):
    """Says which tasks have not started and never will here."""

    task_ids: list[int]


class StreamItem(NamedTuple):
    """One item of a stream."""

    task_id: int
    body: bytes
    gifts: tuple[Any, ...] = ()


class WorkingDirHere(NamedTuple):
    """Says whether the worker has gone to the working directory."""

    here: bool


class EnvironmentState(NamedTuple):
    """How far the worker is with the environment: *text* is a line of its build, or the Python that it runs now."""

    state: str
    text: str


class Output(NamedTuple):
    """What a task printed."""

    task_id: int
    stream: str
    data: bytes


ClientFrame = (
    ClientHello
    | TaughtFunction
    | TaskFrame
    | InputValue
    | CancelTask
    | MoreItems
    | Recall
    | WorkingDirFrame
    | EnvironmentFrame
)
WorkerFrame = (
    ClientWelcome | ClientRefused | Result | Recalled | StreamItem | Output | WorkingDirHere | EnvironmentState
)


def fn_id_of(code: bytes) -> bytes:
    """A function id from its pickled code: equal code, equal id."""
    return hashlib.blake2b(code, digest_size=FN_ID_BYTES).digest()


# -- client to worker


def encode_hello(
    secret: str,
    python: str,
    session: str,
    environment: ImportEnvironment | None = None,
    objects: ObjectsOfClient | None = None,
) -> bytes:
    """The first frame of a client."""
    hello: dict[str, Any] = {"version": PROTOCOL_VERSION, "secret": secret, "python": python, "session": session}
    if environment is not None:
        hello["environment"] = environment.to_plain()  # an earlier worker passes over it, and over what follows
    if objects is not None:
        hello["objects"] = list(objects)
    return encode_frame(["hello", hello])


def encode_function(fn_id: bytes, code: bytes) -> bytes:
    """The frame that teaches the worker a function. Raises FrameTooLarge."""
    return encode_frame(["function", fn_id, code])


def encode_task(
    task_id: int,
    fn_id: bytes,
    args: bytes,
    timeout_s: float | None = None,
    attempt_number: int = 1,
    inputs: Sequence[int] = (),
    about: TaskAbout | None = None,
) -> bytes:
    """The frame that calls a function the worker was taught. Raises FrameTooLarge."""
    if about is not None:
        said = about._asdict()
        return encode_frame(["task", task_id, fn_id, args, timeout_s, attempt_number, inputs, said])
    if inputs:
        return encode_frame(["task", task_id, fn_id, args, timeout_s, attempt_number, inputs])
    if attempt_number == 1:
        return encode_frame(["task", task_id, fn_id, args, timeout_s])
    return encode_frame(["task", task_id, fn_id, args, timeout_s, attempt_number])


def encode_value(key: int, body: bytes) -> bytes:
    """The frame of a value that the next task needs. Raises FrameTooLarge."""
    return encode_frame(["value", key, body])


def encode_cancel(task_id: int) -> bytes:
    """The frame that takes back a task that has not started, and tells one that runs."""
    return encode_frame(["cancel", task_id])


def encode_more(task_id: int, count: int) -> bytes:
    """The frame that grants further items of a stream."""
    return encode_frame(["more", task_id, count])


def encode_recall() -> bytes:
    """The frame that asks for all tasks back that have not started."""
    return encode_frame(["recall"])


def encode_working_dir(digest: str, archive: bytes | None = None) -> bytes:
    """The frame that has the worker go to a working directory. Raises FrameTooLarge."""
    return encode_frame(["working_dir", digest, archive])


def encode_environment_wanted(digest: str, spec: bytes | None = None) -> bytes:
    """The frame that has the worker go on in a Python environment."""
    return encode_frame(["environment", digest, spec])


def parse_client_frame(frame: list[Any]) -> ClientFrame:
    """Read a client's frame. Raises MalformedBody on anything outside the protocol."""
    match frame:
        case ["task", int(task_id), bytes(fn_id), bytes(args), (None | float() | int()) as timeout_s]:
            return _task(task_id, fn_id, args, timeout_s, 1)
        case ["task", int(task_id), bytes(fn_id), bytes(args), (None | float() | int()) as timeout_s, int(number)]:
            return _task(task_id, fn_id, args, timeout_s, number)
        case [
            "task",
            int(task_id),
            bytes(fn_id),
            bytes(args),
            (None | float() | int()) as timeout_s,
            int(number),
            list(keys),
        ] if keys and _are_keys(keys):
            return _task(task_id, fn_id, args, timeout_s, number)._replace(inputs=tuple(keys))
        case [
            "task",
            int(task_id),
            bytes(fn_id),
            bytes(args),
            (None | float() | int()) as timeout_s,
            int(number),
            list(keys),
            {"name": str(name), "retries_left": int(retries), "parent": str(parent), "window": int(window)},
        ] if _are_keys(keys) and len(name) <= MAX_TEXT_CHARS >= len(parent) and 0 <= retries <= MAX_RETRIES:
            if not 0 <= window <= MAX_WINDOW:
                raise MalformedBody("the window of a stream is out of range", found=str(window))
            task = _task(task_id, fn_id, args, timeout_s, number)
            return task._replace(inputs=tuple(keys), about=TaskAbout(name, retries, parent, window))
        case ["more", int(task_id), int(count)] if 1 <= count <= MAX_WINDOW:
            return MoreItems(task_id, count)
        case ["value", int(key), bytes(body)] if 0 <= key <= MAX_TASK_ID:
            return InputValue(key, body)
        case ["function", bytes(fn_id), bytes(code)] if len(fn_id) == FN_ID_BYTES:
            return TaughtFunction(fn_id, code)
        case ["cancel", int(task_id)]:
            return CancelTask(task_id)
        case ["recall"]:
            return Recall()
        case ["working_dir", str(digest), (None | bytes()) as archive] if is_digest(digest):
            return WorkingDirFrame(digest, archive)
        case ["environment", str(digest), (None | bytes()) as spec] if is_digest(digest):
            return EnvironmentFrame(digest, spec)
        case [
            "hello",
            {"version": int(version), "secret": str(secret), "python": str(python), "session": str(session), **rest},
        ]:
            environment, objects = of_plain(rest.get("environment")), _objects(rest.get("objects"))
            return ClientHello(version, secret, python, session, environment, objects)
    raise MalformedBody("not a frame of a session client", found=_describe(frame))


def _objects(fields: Any) -> ObjectsOfClient | None:
    match fields:
        case [bytes(secret), str(home)] if len(secret) == SECRET_BYTES and len(home) <= MAX_TEXT_CHARS:
            return ObjectsOfClient(secret, home)
    return None


def _are_keys(keys: list[Any]) -> bool:
    return all(isinstance(key, int) and 0 <= key <= MAX_TASK_ID for key in keys)


def _task(task_id: int, fn_id: bytes, args: bytes, timeout_s: float | None, number: int) -> TaskFrame:
    in_range = 0 <= task_id <= MAX_TASK_ID and 1 <= number <= MAX_ATTEMPT_NUMBER
    if not in_range or (timeout_s is not None and not 0 < timeout_s < 1e9):
        raise MalformedBody("a task frame holds a number out of range", found=f"{task_id}, {timeout_s}, {number}")
    return TaskFrame(task_id, fn_id, args, timeout_s, number)


# -- worker to client


def encode_welcome(
    worker_id: str,
    python: str,
    pid: int,
    gpu_uuids: list[str],
    elsewhere: bool = False,
    keeps_objects: bool = False,
) -> bytes:
    """The frame that takes the client."""
    return encode_frame(
        [
            "welcome",
            {
                "worker_id": worker_id,
                "python": python,
                "pid": pid,
                "gpu_uuids": list(gpu_uuids),
                "numbers_attempts": True,
                "answers_recalls": True,
                "takes_values": True,
                "takes_about": True,
                "elsewhere": elsewhere,
                "keeps_objects": keeps_objects,
            },
        ]
    )


def encode_refused(error: ActorGridError) -> bytes:
    """The frame that refuses the client; close after it."""
    return encode_frame(["refused", error.to_dict()])


def encode_success(task_id: int, value: bytes, gifts: Sequence[list[Any]] = ()) -> bytes:
    """The frame of a task's value, pickled, with what is kept for it. Raises FrameTooLarge."""
    return encode_frame(["result", task_id, OK, value, gifts] if gifts else ["result", task_id, OK, value])


def encode_failure(task_id: int, error: ActorGridError, exception: bytes | None = None) -> bytes:
    """The frame that says why a task gave no value. Raises FrameTooLarge."""
    return encode_frame(["result", task_id, FAILED, encode_failure_body(error, exception)])


def encode_recalled(task_ids: list[int]) -> bytes:
    """The frame that gives tasks back: ``MAX_WAITING`` of the worker at most."""
    return encode_frame(["recalled", task_ids])


def encode_item(task_id: int, body: bytes, gifts: Sequence[list[Any]] = ()) -> bytes:
    """The frame of one item of a stream, pickled, with what is kept for it. Raises FrameTooLarge."""
    return encode_frame(["item", task_id, body, gifts] if gifts else ["item", task_id, body])


def encode_working_dir_here(here: bool) -> bytes:
    """The frame that answers a ``working_dir``."""
    return encode_frame(["working_dir", here])


def encode_environment(state: str, text: str) -> bytes:
    """The frame that says how far the worker is with an environment."""
    return encode_frame(["environment", state, text])


def encode_output(task_id: int, stream: str, data: bytes) -> bytes:
    """The frame of something a task printed."""
    return encode_frame(["output", task_id, stream, data])


def parse_worker_frame(frame: list[Any]) -> WorkerFrame:
    """Read a worker's frame. Raises MalformedBody on anything outside the protocol."""
    match frame:
        case ["result", int(task_id), int(status), bytes(body)] if status in (OK, FAILED):
            return Result(task_id, status, body)
        case ["result", int(task_id), int(status), bytes(body), list(gifts)] if status in (OK, FAILED):
            return Result(task_id, status, body, tuple(gifts))
        case ["working_dir", bool(here)]:
            return WorkingDirHere(here)
        case ["environment", str(state), str(text)] if state in ENVIRONMENT_STATES:
            return EnvironmentState(state, text)
        case ["recalled", list(task_ids)] if all(isinstance(task_id, int) for task_id in task_ids):
            return Recalled(task_ids)
        case ["item", int(task_id), bytes(body)]:
            return StreamItem(task_id, body)
        case ["item", int(task_id), bytes(body), list(gifts)]:
            return StreamItem(task_id, body, tuple(gifts))
        case ["output", int(task_id), ("stdout" | "stderr") as stream, bytes(data)]:
            return Output(task_id, stream, data)
        case [
            "welcome",
            {"worker_id": str(worker_id), "python": str(python), "pid": int(pid), "gpu_uuids": list(uuids), **rest},
        ]:
            can = (rest.get(name) is True for name in ClientWelcome._fields[4:])
            return ClientWelcome(worker_id, python, pid, [str(uuid) for uuid in uuids], *can)
        case ["refused", dict(error)]:
            return ClientRefused(error_from_dict(error))
    raise MalformedBody("not a frame of a worker", found=_describe(frame))


# -- failures and result files


def encode_failure_body(error: ActorGridError, exception: bytes | None) -> bytes:
    """The body of a failed result."""
    packed: bytes = msgpack.packb({"error": error.to_dict(), "exception": exception}, use_bin_type=True)
    return packed


def decode_failure_body(body: bytes) -> tuple[ActorGridError, bytes | None]:
    """The error and the pickled exception (if it could be pickled). Raises MalformedBody."""
    fields = _unpack_map(body)
    error, exception = fields.get("error"), fields.get("exception")
    if not isinstance(error, dict) or not (exception is None or isinstance(exception, bytes)):
        raise MalformedBody("a failed result does not hold an error")
    return error_from_dict(error), exception


class JobResult(NamedTuple):
    """What a function job left: ``value`` pickled when ``ok``, else ``error`` and maybe the pickled exception."""

    ok: bool
    value: bytes | None
    error: ActorGridError | None
    exception: bytes | None


def encode_result(
    value: bytes | None = None, error: ActorGridError | None = None, exception: bytes | None = None
) -> bytes:
    """The result file of a function job: a pickled value, or an error."""
    fields = {
        "ok": error is None,
        "value": value,
        "error": None if error is None else error.to_dict(),
        "exception": exception,
    }
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return packed


def decode_result(data: bytes) -> JobResult:
    """Read a result file. Raises MalformedBody."""
    match _unpack_map(data):
        case {"ok": True, "value": bytes(value)}:
            return JobResult(True, value, None, None)
        case {"ok": False, "error": dict(error), "exception": (None | bytes()) as exception}:
            return JobResult(False, None, error_from_dict(error), exception)
    raise MalformedBody("not the result of a function job")


def _unpack_map(data: bytes) -> dict[str, Any]:
    try:
        fields = msgpack.unpackb(data, raw=False)
    except (ValueError, msgpack.UnpackException, RecursionError, OverflowError, TypeError) as error:
        raise MalformedBody(f"not msgpack: {type(error).__name__}") from None
    if not isinstance(fields, dict):
        raise MalformedBody("not a msgpack map", found=type(fields).__name__)
    return fields


def _describe(frame: list[Any]) -> str:
    kind = frame[0] if frame else ""
    return f"{str(kind)[:40]!r} with {len(frame) - 1} fields of {[type(field).__name__ for field in frame[1:6]]}"
