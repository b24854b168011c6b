"""Results of attempts: what of them is for the agent, and that they are on disk before the ledger hears of them.

A call that a worker serves leaves its result and status unsynced: two waits for the disk in the way of the call after
it were most of what a short one took. They are synced here, beside the calls that run by then, and only after that the
ledger is told. Threads wait for the disk, since a file system commits what several wait for at once in one go.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from actorgrid.actors.files.untrusted_files import open_to_read, open_with_folder, size_of
from actorgrid.actors.ledger.graph_records import StepResultRecord
from actorgrid.configs.fsync import sync_folder
from actorgrid.endings import STDERR_READ_BYTES
from actorgrid.errors import MalformedBody, NotARegularFile
from actorgrid.supervisors.runtime import Runtime
from actorgrid.transports.task_frames import JobResult, decode_result

from .attempt_dir import AttemptDir
from .command_steps import result_of_command
from .file_threads import FileThreads
from .outcomes import outcome_of
from .step_results import read_index
from .work_records import AttemptEnd, WorkStatus, lost_spec

MAX_ERROR_RESULT_BYTES = 4 * 2**20
"""A result file larger than that is not read by the agent."""
THREADS = 4
TOGETHER_MAX = 8
"""What one of them takes at once: they share the sync of the folder that theirs are in, and are told together."""


def result_sync(runtime: Runtime) -> FileThreads[tuple[Path, str], None]:
    """The threads of one host that have files on disk: ``run((folder, name))`` returns when the file *name* of *folder*
    is there, under that name. Raises OSError, NotARegularFile."""
    return FileThreads(runtime, sync_all, THREADS, TOGETHER_MAX)


def sync_all(files: Sequence[tuple[Path, str]]) -> list[OSError | NotARegularFile | None]:
    """Have files of folders, by (folder, name), on disk: what each raised. The folder that theirs are in is synced
    once, behind all of them."""
    errors = [_error_of(partial(_sync_file, folder, name)) for folder, name in files]
    parents = {folder.parent for (folder, _), error in zip(files, errors, strict=True) if error is None}
    failed = {parent: _error_of(partial(sync_folder, parent)) for parent in parents}
    return [error or failed[folder.parent] for (folder, _), error in zip(files, errors, strict=True)]


def _sync_file(folder: Path, name: str) -> None:
    # Its folder is opened once for both: after each call a thread asks for the interpreter again, beside its server.
    with open_with_folder(folder, name) as (within, fd):
        os.fsync(fd)
        os.fsync(within)


def _error_of(act: Callable[[], None]) -> OSError | NotARegularFile | None:
    try:
        act()
    except (OSError, NotARegularFile) as error:
        return error
    return None


def end_of(directory: AttemptDir, status: WorkStatus) -> AttemptEnd:
    """What the ledger is told of an attempt that has ended with *status*: from what it left in its folder."""
    spec = directory.read_spec() or lost_spec(directory.attempt_id)
    size = directory.output_size("stderr")
    try:
        tail = directory.read_output("stderr", max(0, size - STDERR_READ_BYTES), STDERR_READ_BYTES) if size else b""
    except NotARegularFile as error:
        tail = f"[actorgrid: {error}]".encode()
    if spec["kind"] != "function":
        facts = outcome_of(spec, status, tail, None)
        given = result_of_command(directory, spec, status) if facts["outcome"] == "succeeded" else None
        if given is not None:
            facts["results"] = [dict(given)]
        return facts
    steps = spec["function"].get("steps")
    count = None if steps is None else len(steps)
    facts = outcome_of(spec, status, tail, result_of(directory, status, count))
    if count is not None:
        # What was done is done, also where the attempt ended badly after it.
        results = read_index(directory.path, directory.result.name, count)
        is_void = facts["outcome"] == "lost" and spec["function"].get("live_inputs")  # of items that do not count
        if results is not None and not is_void:
            facts["results"] = [dict(each) for each in results]
    return facts


def result_of(directory: AttemptDir, status: WorkStatus, steps: int | None = None) -> JobResult | None:
    """The result of a function, as far as the agent reads it: that there is a value, or the error. ``None``: neither.
    Of *steps* of a graph, so many: the error of the one that failed.

    *status* is that of its attempt.
    """
    results = None if steps is None else read_index(directory.path, directory.result.name, steps)
    if steps is not None:
        return _of_steps(directory, results)
    if status.get("exit_code") == 0:
        # Its value is for the client alone; that it was renamed into place says that it is complete.
        return None if size_of(directory.path, directory.result.name) is None else JobResult(True, b"", None, None)
    try:
        data = directory.read_result(MAX_ERROR_RESULT_BYTES)
        return None if data is None else decode_result(data)
    except MalformedBody:
        return None


def _of_steps(directory: AttemptDir, results: list[StepResultRecord] | None) -> JobResult | None:
    if results is None:
        return None
    if not results or results[-1]["ok"]:
        return JobResult(True, b"", None, None)
    last = results[-1]
    if last["size"] > MAX_ERROR_RESULT_BYTES:
        return None
    try:
        with open_to_read(directory.path, directory.result.name) as fd:
            found = decode_result(os.pread(fd, last["size"], last["offset"]))
    except (OSError, NotARegularFile, MalformedBody):
        return None
    return found if found.error is not None else None
