"""Run one pickled call in a worker: unpickle, call, pickle what it gave or why it failed.

Only workers import this: it is the place where users' bytes become objects.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import pickle  # nosec B403 - a worker exists to run what its authenticated owner sent
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actorgrid import code_pickler
from actorgrid.actors.files.untrusted_files import read_whole
from actorgrid.errors import (
    ActorGridError,
    DependencyFailed,
    NotARegularFile,
    ObjectLost,
    ObjectStoreFull,
    TaskCancelled,
    TaskFailed,
    TaskTimedOut,
    UnknownKey,
    UnpicklableResult,
)
from actorgrid.import_environment import environment_of, take
from actorgrid.objects.stored import PickledBeside
from actorgrid.pickle_blame import blame, short
from actorgrid.transports.remote_exceptions import LEFT_BEHIND, pickle_exception
from actorgrid.transports.task_frames import decode_result

from .attempt_dir import RESULT_FILE_BYTES_MAX
from .import_guard import no_imports

MAX_TRACEBACK_CHARS = 64 * 1024
ATOMS = frozenset({type(None), bool, int, float, str, bytes})


class TimeIsUp(BaseException):
    """Raised in a task when its time is up; no ``except Exception`` of the user's stops it."""


def dump_value(value: Any, max_bytes: int | None, beside: PickledBeside | None = None) -> bytes:
    """Pickle a task's value; *beside* takes what pickle leaves out of it, and then there is no limit to that.

    Raises UnpicklableResult when it cannot be pickled or is over *max_bytes*, naming the part.
    """
    try:
        try:
            if type(value) in ATOMS:
                data = pickle.dumps(value, protocol=5)
            else:
                with no_imports():
                    data = pickle.dumps(value, protocol=5, buffer_callback=beside)
        except Exception:  # noqa: BLE001 - user classes raise anything; cloudpickle takes more than pickle does
            if beside is not None:
                beside.clear()
            data = code_pickler.dumps(value, beside)
    except Exception as error:  # noqa: BLE001 - as above
        found = blame(value, _pickles)
        where = f"the result cannot be pickled: {found.path}" if found.path else "the result cannot be pickled"
        raise UnpicklableResult(
            f"{where}: {type(error).__name__}: {error}"[:4096],
            asked=f"a {type(value).__module__}.{type(value).__qualname__}",
            found=short(found.part),
            hint="client.stream(fn, ...) gives what a generator yields, one after another"
            if isinstance(value, (types.GeneratorType, types.AsyncGeneratorType))
            else "return plain data, or write it to a file and return the path",
            path=found.path,
        ) from None
    if max_bytes is not None and len(data) > max_bytes:
        raise UnpicklableResult(
            f"the result is {len(data)} bytes, over the limit of {max_bytes}",
            asked=f"a {type(value).__module__}.{type(value).__qualname__}",
            hint="write it to a file and return the path, or raise work.max_result_bytes",
        )
    return data


def _pickles(value: Any) -> bool:
    try:
        code_pickler.dumps(value)
    except Exception:  # noqa: BLE001 - whatever a user's object raises means no
        return False
    return True


def describe_failure(error: BaseException, timeout_s: float | None = None) -> tuple[ActorGridError, bytes | None]:
    """The named error for what a call raised, and the pickled exception where it can be unpickled again."""
    if isinstance(error, TimeIsUp):
        limit = f"{timeout_s:g} s" if timeout_s else "its time limit"
        return TaskTimedOut(f"the task ran past {limit}", hint="ask for a longer timeout=, or split the work"), None
    if isinstance(error, UnpicklableResult | DependencyFailed | ObjectLost | ObjectStoreFull):
        return error, None
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("actorgrid.actors.work."):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))[-MAX_TRACEBACK_CHARS:]
    hint = ""
    if isinstance(error, ModuleNotFoundError):
        hint = f"install {error.name!r} where the host's Python finds it, or send it along: working_dir="
    elif isinstance(error, SystemExit):
        hint = "a function gives its result by return; sys.exit ends it as failed"
    try:
        message = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a user's __str__ may raise
        message = type(error).__name__
    exception, left_behind = pickle_exception(error)
    failure = TaskFailed(message[:4096], traceback=text, hint=hint)
    if left_behind:
        failure.details[LEFT_BEHIND] = left_behind
    return failure, exception


def describe_end(
    error: BaseException, timeout_s: float | None, is_late: bool, is_stopped: bool
) -> tuple[ActorGridError, bytes | None]:
    """The same of a session task: *is_late*, it was stopped as its time was up; *is_stopped*, as it was asked to."""
    if isinstance(error, UnknownKey) and (error.details.get("fn_id") or error.details.get("value_keys")):
        return error, None
    if is_late and isinstance(error, asyncio.CancelledError):
        error = TimeIsUp()
    elif is_stopped and isinstance(error, (asyncio.CancelledError, TaskCancelled)):
        return TaskCancelled("the task was asked to stop, and did"), None
    return describe_failure(error, timeout_s)


class _PayloadUnpickler(pickle.Unpickler):
    """An unpickler that resolves references to other jobs' results."""

    def __init__(self, data: bytes, inputs: dict[str, str]) -> None:
        super().__init__(io.BytesIO(data))
        self._inputs = inputs

    def persistent_load(self, pid: Any) -> Any:
        match pid:
            case ("job", str(job_id)) if job_id in self._inputs:
                return load_result(job_id, Path(self._inputs[job_id]))
        raise DependencyFailed(f"the payload refers to {pid!r}, which this job does not depend on")


def load_result(job_id: str, path: Path) -> Any:
    """The value a job left. Raises DependencyFailed."""
    try:
        data = read_whole(path.parent, path.name, RESULT_FILE_BYTES_MAX)
        if data is None:
            raise DependencyFailed(
                f"the result of job {job_id} is too large", asked=job_id, found=f"over {RESULT_FILE_BYTES_MAX} bytes"
            )
        result = decode_result(data)
    except NotARegularFile as error:
        raise DependencyFailed(
            f"job {job_id} left no result: {error.message}", asked=job_id, found=error.found
        ) from None
    except OSError as error:
        raise DependencyFailed(f"the result of job {job_id} is gone: {error.strerror}", asked=job_id) from None
    if result.value is None:
        raise DependencyFailed(f"job {job_id} has no value", asked=job_id, found=str(result.error))
    return pickle.loads(result.value)  # nosec B301 - a worker reads what a worker of the same owner wrote


def load_payload(path: Path, digest: str, inputs: dict[str, str]) -> tuple[Callable[..., Any], Any, Any]:
    """The call in a job's payload. Raises TaskFailed when the bytes are not those the digest names."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise TaskFailed("the payload on disk does not match its digest", asked=digest, hint="submit the job again")
    environment = environment_of(data)
    if environment is not None:
        take(environment)
    function, args, kwargs = _PayloadUnpickler(data, inputs).load()
    return function, args, kwargs
