"""The child of a shim: contained and with its files open, it becomes the command or the worker of its spec."""

from __future__ import annotations

import errno
import os
import signal
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

from setproctitle import setproctitle

from actorgrid.errors import ActorGridError, IsolationNotGiven

from .apart_records import ApartSpec
from .checkpoint_link import link_checkpoint
from .checkpoint_spec import unpack_checkpoint
from .command_steps import put_taken_files
from .containers import in_container
from .device_memory_limits import limit_device_memory
from .group_limits import limit_group
from .groups import FreezerGroup, KillGroup
from .guard import SharedDeadline
from .isolation.confine import become, confine_a_little, enter_own_namespaces
from .isolation.own_folders import give_inputs, make_own_folders
from .isolation.shut_in import shut_in
from .job_terminal import be_controlled_by, take_signals
from .limits import limit_process
from .linux import MARK_HOST, boot_seconds, close_all_but, die_with_parent, mark
from .outcomes import KEEP_APART, MAKE_ENVIRONMENT, START_CONTAINER
from .python_environment_spec import prepare_environment
from .secret_files import add_variables
from .work_records import WorkSpec
from .worker_process import WorkerDeadline
from .working_dir_spec import unpack_working_dir

EXIT_NOT_STARTED = 127
LONG_STEP = b"\0"
"""A child says by it that a step follows which may take longer than its shim can wait."""
EXIT_CRASHED = 70
PUT_TAKEN = "put the files that it takes into its directory"

Body = Callable[[WorkSpec, list[socket.socket], WorkerDeadline], int]
"""What a worker does: its spec, its sockets, and by when it has to be over; gives the exit code."""


class ChildEnds(NamedTuple):
    """The descriptors that a child gets from its shim."""

    out: int
    err: int
    fault: int
    """On which it says what it cannot do; closed once it is at its work."""
    sockets: list[socket.socket]
    """Of a worker."""
    has_terminal: bool = False
    """Whether ``out`` is one, and standard input and error as well."""


class ShimChild(NamedTuple):
    """What the child of a shim is made of."""

    spec: WorkSpec
    attempt_id: str
    group: KillGroup | FreezerGroup | None
    """The group that it enters."""
    deadline: SharedDeadline

    def run(self, body: Body, parent_pid: int, ends: ChildEnds) -> NoReturn:
        """Be the child: called in a process that was just forked, by *parent_pid*."""
        spec, deadline_fd = self.spec, -1
        step = "set up"
        try:
            die_with_parent(parent_pid)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            if ends.has_terminal:
                take_signals()
                be_controlled_by(ends.out)
            else:
                os.setpgid(0, 0)
            if spec.get("device_memory"):
                step = "have the kernel limit its GPU memory"
                if self.group is None:
                    raise OSError(errno.ENODEV, "it has no cgroup of its own")
                limit_device_memory(self.group.path, spec["device_memory"])
                step = "set up"
            if self.group is not None:
                limit_group(self.group, spec)
                self.group.enter()
            limit_process()
            step = "open standard input"
            stdin = ends.out if ends.has_terminal else os.open(spec["stdin"] or os.devnull, os.O_RDONLY)
            for source, target in ((stdin, 0), (ends.out, 1), (ends.out if ends.has_terminal else ends.err, 2)):
                os.dup2(source, target)
            # Where the process goes on in another Python, that has to find the deadline anew.
            deadline_fd = self.deadline.fd if ends.sockets else -1
            kept = [0, 1, 2, ends.fault, *(end.fileno() for end in ends.sockets)]
            close_all_but([*kept, deadline_fd] if deadline_fd >= 0 else kept)
            os.umask(0o022)
            apart = spec.get("apart")
            if apart is not None and apart["level"] == "basic":
                confine_a_little(apart)
            is_full = apart is not None and apart["level"] == "full"
            builds = bool(spec.get("environment")) and spec["kind"] != "functions"
            if builds and not is_full:
                os.write(ends.fault, LONG_STEP)
                step = MAKE_ENVIRONMENT
                prepare_environment(spec, _say)
            if spec.get("working_dir"):
                os.write(ends.fault, LONG_STEP)
                step = "unpack the working directory"
                unpack_working_dir(spec)
            if apart is not None and apart.get("inputs"):
                os.write(ends.fault, LONG_STEP)
                step = "have what other steps gave"
                give_inputs(apart)
            if spec.get("step") and not is_full:
                step = PUT_TAKEN
                self._put_taken_files(ends)
            if spec.get("checkpoint"):
                os.write(ends.fault, LONG_STEP)
                step = "have the checkpoint"
                unpack_checkpoint(spec)
            step = "have its secrets"
            add_variables(spec)
            if apart is not None and is_full:
                step = KEEP_APART
                make_own_folders(apart, Path(spec.get("working_dir", {}).get("own_cwd") or "/nonexistent"))
            if spec.get("checkpoint"):
                step = "have the checkpoint"
                link_checkpoint(spec)
            if apart is not None and is_full:
                step = KEEP_APART
                self._be_apart(apart, parent_pid, ends)
                if spec.get("step"):
                    if "container" in spec:  # we are root still, and would put files where users say
                        raise IsolationNotGiven("a step of a graph in a container cannot be kept apart")
                    step = PUT_TAKEN  # by its own rights: the directory may be anybody's
                    self._put_taken_files(ends)
            if builds and is_full:  # which runs code of others: as what the work is, where it is
                os.write(ends.fault, LONG_STEP)
                step = MAKE_ENVIRONMENT
                prepare_environment(spec, _say)
            step = f"enter {spec['cwd']}"
            os.chdir(spec["cwd"])
            if self._is_over():
                os._exit(EXIT_NOT_STARTED)  # the shim looks at the clock before it looks at us
            if spec.get("container"):
                step = START_CONTAINER
                spec["command"] = in_container(spec)
            if spec["kind"] == "command":
                step = f"run {spec['command'][0]}"
                os.execvpe(spec["command"][0], spec["command"], spec["env"])  # nosec B606 - the job itself
        except (OSError, ValueError, ActorGridError) as error:
            why = (error.strerror or "") if isinstance(error, OSError) else str(error)
            step = KEEP_APART if isinstance(error, IsolationNotGiven) else step
            os.write(ends.fault, f"cannot {step}: {why}".encode()[:4000])
            os._exit(EXIT_NOT_STARTED)
        os.close(ends.fault)
        try:
            setproctitle(spec["title"])
            mark(spec["env"].get(MARK_HOST, ""), self.attempt_id)
            os._exit(body(spec, ends.sockets, WorkerDeadline(self._is_over, deadline_fd)))
        except BaseException:  # noqa: BLE001 - the outermost loop of a worker process
            traceback.print_exc()
            os._exit(EXIT_CRASHED)

    def _put_taken_files(self, ends: ChildEnds) -> None:
        os.write(ends.fault, LONG_STEP)
        put_taken_files(self.spec)

    def _be_apart(self, apart: ApartSpec, parent_pid: int, ends: ChildEnds) -> None:
        """Leave what is the agent's, and become the work's uid where there is one. Raises OSError."""
        if os.geteuid() != 0:
            shut_in(apart, self.spec["cwd"], parent_pid)
            return
        for fd in (1, 2):
            os.fchown(fd, apart["uid"], apart["uid"])  # /dev/stdout and /dev/stderr are opened anew by name
        if "container" in self.spec:
            return  # its runtime is root's, and makes what it starts that uid
        enter_own_namespaces(apart, self.spec["cwd"])
        become(apart, parent_pid)

    def _is_over(self) -> bool:
        """Whether the deadline has passed: asked before it begins, and by a worker before it writes."""
        return boot_seconds() >= self.deadline.get()


def _say(line: str) -> None:
    """For who reads what the work says: what is done before it begins."""
    os.write(2, f"[actorgrid] {line}\n".encode("utf-8", "replace"))
