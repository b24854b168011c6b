"""What the child of a shim does after its fork, when it is no command: it becomes the worker that its spec asks for."""

from __future__ import annotations

import faulthandler
import gc
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from actorgrid.actors.files.untrusted_files import open_to_read, remove_tree
from actorgrid.actors.objects import server as object_store
from actorgrid.errors import NotARegularFile

from .attempt_dir import AttemptDir
from .isolation.own_folders import HOME, INPUTS, TMP, remove_own_folders
from .outcomes import DISK
from .work_records import WorkSpec, call_of


class WorkerDeadline(NamedTuple):
    """By when a worker has to be over, as its shim says from time to time."""

    is_over: Callable[[], bool]
    """Whether its time is over: what it says then is not taken."""
    fd: int
    """The memory in which that is read, for another Python in its place; -1 where there is none."""


def worker_draft(result: Path) -> Path:
    """The file in which a worker leaves its result; the shim renames it, unless it came too late."""
    return result.with_name(f"{result.name}.draft")


def take_draft(spec: WorkSpec, directory: AttemptDir, is_late: bool) -> None:
    """Give the result that the work has left its name, when nothing of the work lives any more, unless it *is_late*;
    and remove what only the work had. Raises OSError.

    It is left by the work's own uid, maybe: what is no file of its own with one name is none, and from then on it is
    ours. Who reads it follows no link either.
    """
    function, apart = spec.get("function"), spec.get("apart")
    is_apart = function is not None and apart is not None and apart["level"] == "full"
    draft = worker_draft(Path(function["result_path"]) if function is not None and is_apart else directory.result)
    with suppress(FileNotFoundError):
        if not is_late and apart is not None and is_apart:
            _take_from(draft, apart["uid"], directory.result)
        elif not is_late:
            draft.rename(directory.result)
    if apart is not None:
        remove_own_folders(apart)


def remove_unread(spec: WorkSpec, directory: AttemptDir, reason: str) -> None:
    """Remove what nobody reads any more of work of which nothing lives: its own folders, but for what it gives."""
    apart, floods = spec.get("apart"), reason.startswith(f"{DISK} ")
    gives = ("function" in spec or "outputs" in spec) and not floods
    if apart is not None:
        remove_own_folders(apart, (TMP, INPUTS) if gives else (HOME, TMP, INPUTS))
    if spec.get("working_dir") and floods:
        remove_tree(directory.own_cwd)


def _take_from(draft: Path, uid: int, result: Path) -> None:
    with suppress(NotARegularFile), open_to_read(draft.parent, draft.name) as held:
        found = os.fstat(held)
        if found.st_nlink != 1 or found.st_uid != (uid or os.geteuid()):
            return
        if uid:
            # Other work of that uid has it among its inputs, and is to leave it as it is.
            os.fchown(held, 0, 0)
            os.fchmod(held, 0o600)
        draft.rename(result)
        if not os.path.samestat(os.lstat(result), found):
            remove_tree(result)  # another thing had come in its place


def worker_body(spec: WorkSpec, inherited: list[socket.socket], deadline: WorkerDeadline) -> int:
    """What the child of a function job or pool worker does after its fork; gives the exit code."""
    from . import function_job, function_server, worker
    from .environment import use_environment
    from .worker_switch import WorkerHost

    _open_streams()
    gc.enable()
    if spec.get("environment"):
        _switch(spec, inherited, deadline)
    use_environment(spec["env"])
    if spec["kind"] == "function":
        return function_job.run_job(call_of(spec), worker_draft(Path(spec["function"]["result_path"])))
    if spec["kind"] == "functions":
        (control,) = inherited
        function_server.serve(spec, control, deadline.is_over)
    listener, control = inherited
    if spec["kind"] == "objects":
        object_store.serve(spec["objects"], listener, control, deadline.is_over)
    worker.serve(spec["worker"]["worker_id"], listener, control, WorkerHost(spec, deadline))


def _switch(spec: WorkSpec, inherited: list[socket.socket], deadline: WorkerDeadline) -> None:
    """Go on in the Python of the work's environment, which is there by now."""
    from .python_environment_spec import prepare_environment
    from .python_switch import go_on_in

    environment, wanted = prepare_environment(spec, _say), spec.get("environment")
    assert environment is not None and wanted is not None, "it is asked for"
    fds = {name: end.fileno() for name, end in zip(("control",), inherited, strict=False)}
    if deadline.fd >= 0:
        fds["deadline"] = deadline.fd
    go_on_in(environment, Path(wanted["folder"]), spec, {}, fds)


def _say(line: str) -> None:
    print(f"[actorgrid] {line}", file=sys.stderr, flush=True)


def switched_body(
    spec: WorkSpec, state: dict[str, Any], sockets: dict[str, socket.socket], deadline: WorkerDeadline
) -> int:
    """What such a child does in the Python of its environment; gives the exit code."""
    from . import function_job, function_server, worker
    from .environment import use_environment
    from .worker_switch import WorkerHost

    _open_streams()
    use_environment(spec["env"])
    if spec["kind"] == "function":
        return function_job.run_job(call_of(spec), worker_draft(Path(spec["function"]["result_path"])))
    if spec["kind"] == "functions":
        function_server.serve(spec, sockets["control"], deadline.is_over)
    faulthandler.enable(file=2)
    host, name = WorkerHost(spec, deadline), spec["worker"]["worker_id"]
    pool_worker = worker.Worker(name, sockets["listener"], sockets["control"], host)
    pool_worker.take_up(state, sockets)
    pool_worker.run()


def _open_streams() -> None:
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(0, "r", closefd=False),
        os.fdopen(1, "w", buffering=1, closefd=False),
        os.fdopen(2, "w", buffering=1, closefd=False),
    )
