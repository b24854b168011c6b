"""The child of a function job: runs the one call of its payload and leaves the result in a file."""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import sys
from pathlib import Path
from time import sleep
from types import CoroutineType

from actorgrid import task_context
from actorgrid.errors import ActorGridError, PythonMismatch
from actorgrid.objects import here
from actorgrid.task_context import RunningCall
from actorgrid.transports.task_frames import encode_result

from .attempt_dir import write_durably, write_whole
from .environment import PYTHON
from .function_call import describe_failure, dump_value, load_payload
from .output import FULL_DISK_RETRY_S
from .step_job import run_steps
from .work_records import CallSpec

EXIT_TASK_FAILED = 1


def run_job(spec: CallSpec, result_path: Path, *, durably: bool = True) -> int:
    """Run the one call of a function job and leave its result there; gives the exit code.

    Not *durably*, the result is synced by who takes it (``attempt_results.py``).
    """
    faulthandler.enable(file=2)
    function = spec["function"]
    try:
        if function["python"] and function["python"] != PYTHON:
            raise PythonMismatch(
                "the function was pickled by another Python",
                asked=function["python"],
                found=PYTHON,
                hint="run client and host on the same minor version of Python",
            )
        if "steps" in function:
            return run_steps(spec, lambda data: _leave(result_path, data, durably))
        here.use_store(function.get("objects", ""), function.get("host_id", ""))
        call, args, kwargs = load_payload(Path(function["payload_path"]), function["digest"], function["inputs"])
        running = RunningCall((spec["job_id"], 0), spec["timeout_s"])
        running.function_name, running.retries_left = getattr(call, "__name__", ""), None
        task_context.begins(running)
        value = call(*args, **kwargs)
        if isinstance(value, CoroutineType):
            value = asyncio.run(value)
        data = encode_result(dump_value(value, function["max_result_bytes"]))
        code = 0
    except ActorGridError as error:
        named, exception = (error, None) if isinstance(error, PythonMismatch) else describe_failure(error)
        data, code = encode_result(error=named, exception=exception), EXIT_TASK_FAILED
    except BaseException as error:  # noqa: BLE001 - the outermost loop of a job: whatever it raises is its result
        named, exception = describe_failure(error)
        data, code = encode_result(error=named, exception=exception), EXIT_TASK_FAILED
        print(named.details.get("traceback", ""), file=sys.stderr, end="")
    _leave(result_path, data, durably)
    return code


def _leave(result_path: Path, data: bytes, durably: bool) -> None:
    """Write the result file, behind all that was printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # closed by the user's code
    while True:
        try:
            (write_durably if durably else write_whole)(result_path, data)
            return
        except OSError as error:
            # A full disk holds the job back as it holds back output; the job's own time limit still counts.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            sleep(FULL_DISK_RETRY_S)
