"""How a pool worker goes over to the Python of an environment: it is built if need be, and the worker goes on in it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from actorgrid.errors import MalformedBody, NotSupported, StorageError
from actorgrid.transports.task_frames import EnvironmentFrame

from .built_environments import BuildProgress, BuiltEnvironment
from .python_environment_spec import enter_environment, environments_in
from .python_switch import go_on_in
from .work_records import WorkSpec
from .worker_process import WorkerDeadline


class WorkerHost(NamedTuple):
    """What a worker knows of its host."""

    spec: WorkSpec
    """What its shim was told to run (attempt_specs.py)."""
    deadline: WorkerDeadline


class WorkerSwitch:
    """Of one worker. It goes over once: who wants another environment gets another worker."""

    def __init__(self, host: WorkerHost | None) -> None:
        self._host = host
        self._digest = ""  # of the environment whose Python this is
        self._built: BuiltEnvironment | None = None

    def is_in(self, digest: str) -> bool:
        """Whether this is the Python of that environment."""
        return self._digest == digest

    def again(self, environ: dict[str, str]) -> dict[str, str]:
        """The variables of a further session, with those of the environment."""
        if self._built is not None:
            enter_environment(self._built, environ)
        return environ

    def arrived(self, state: dict[str, Any]) -> None:
        """Take note, in the Python that was gone over to, which it is."""
        self._digest, self._built = state["environment"], BuiltEnvironment(*state["built"])

    def prepare(
        self, wanted: EnvironmentFrame, environ: dict[str, str], progress: BuildProgress
    ) -> BuiltEnvironment | None:
        """Have the environment there, held from being removed; ``None`` where its spec is needed for that.

        Raises NotSupported, MalformedBody, EnvironmentFailed, DiskFull, TaskCancelled, StorageError.
        """
        if self._host is None or "environments" not in self._host.spec["worker"]:
            raise NotSupported("this worker makes no Python environments", asked=wanted.digest)
        if self._digest:
            raise MalformedBody("the worker is of another environment already", asked=wanted.digest, found=self._digest)
        kept = environments_in(self._host.spec["worker"]["environments"])
        try:
            held = kept.hold(wanted.digest)
            os.set_inheritable(held, True)  # for as long as the other Python lives
            found = kept.found(wanted.digest)
            if found is None and wanted.spec is not None:
                said = wanted.spec
                found = kept.get(wanted.digest, lambda: said, environ, progress)
        except OSError as error:
            raise StorageError(f"cannot make the Python environment: {error}", asked=wanted.digest) from error
        if found is None:
            os.close(held)
        return found

    def go(
        self,
        found: BuiltEnvironment,
        digest: str,
        environ: dict[str, str],
        state: dict[str, Any],
        ends: dict[str, socket.socket],
    ) -> NoReturn:
        """Go over. Raises EnvironmentFailed, StorageError where that Python does not start."""
        assert self._host is not None, "prepare has looked"
        enter_environment(found, environ)
        fds = {name: end.fileno() for name, end in ends.items()}
        if self._host.deadline.fd >= 0:
            fds["deadline"] = self._host.deadline.fd
        folder = Path(self._host.spec["worker"]["environments"]["folder"])
        told = {**state, "environment": digest, "built": list(found)}
        try:
            go_on_in(found, folder, {**self._host.spec, "env": environ}, told, fds)
        except OSError as error:
            raise StorageError(f"cannot go over to the Python environment: {error}", asked=digest) from error
