"""What the child of a shim does after its fork, when it is no command: it becomes the worker that its spec asks for."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .working_dirs import WorkingDirs


def worker_draft(result: Path) -> Path:
    """The file in which a worker leaves its result; the shim renames it, unless it came too late."""
    return result.with_name(f"{result.name}.draft")


def worker_body(spec: dict[str, Any], inherited: list[socket.socket], is_over: Callable[[], bool]) -> int:
    """What the child of a function job or pool worker does after its fork; gives the exit code."""
    from . import function_job, function_server, worker

    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(0, "r", closefd=False),
        os.fdopen(1, "w", buffering=1, closefd=False),
        os.fdopen(2, "w", buffering=1, closefd=False),
    )
    gc.enable()
    worker.use_environment(spec["env"])
    if spec["kind"] == "function":
        return function_job.run_job(spec, worker_draft(Path(spec["function"]["result_path"])))
    if spec["kind"] == "functions":
        (control,) = inherited
        function_server.serve(spec, control, is_over)
    listener, control = inherited
    kept = WorkingDirs(Path(spec["worker"]["working_dirs"])) if "working_dirs" in spec["worker"] else None
    worker.serve(spec["worker"]["worker_id"], listener, control, is_over, kept)
