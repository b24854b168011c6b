"""The start of a command beside the one that a job runs: in what keeps the job, with its variables and its folder.

In a pid namespace it is our grandchild: who enters one is not in it, only its children are. The process between waits
for it, and ends as it did. When the job's init ends, the kernel ends it with everything else inside.
"""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress
from typing import NamedTuple, NoReturn

from .apart_records import ApartSpec
from .groups import FreezerGroup, KillGroup
from .isolation.calls import gain_no_privileges
from .isolation.confine import become
from .isolation.shut_in import shut_in
from .job_terminal import be_controlled_by, take_signals
from .limits import limit_process
from .linux import (
    close_all_but,
    die_with_parent,
    drop_capabilities,
    end_with_parent,
    enter_namespace,
    namespaces_apart,
    open_namespace,
)
from .shim_child import EXIT_NOT_STARTED


class ExecFiles(NamedTuple):
    """The descriptors that become standard input, output and error; all three of a terminal, or none."""

    stdin: int
    stdout: int
    stderr: int
    has_terminal: bool


class ExecChild(NamedTuple):
    """A command, and where it is to run."""

    command: list[str]
    env: dict[str, str]
    cwd: str
    group: KillGroup | FreezerGroup | None
    init_pid: int
    """Of the pid namespace to enter; 0: none."""
    inside_pid: int = 0
    """A process whose user and mount namespaces are a container's; 0: it runs in none."""
    apart: ApartSpec | None = None
    """How the job is kept apart."""
    work_pid: int = 0
    """The job's own process, whose namespaces are its."""

    def start(self, files: ExecFiles) -> tuple[int, int]:
        """Fork it; gives the pid, and a descriptor: nothing comes of it when the command has begun, else why not."""
        fault_read, fault_write = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be(files, fault_write, parent)
        os.close(fault_write)
        os.set_blocking(fault_read, False)
        return pid, fault_read

    def _be(self, files: ExecFiles, fault: int, parent: int) -> NoReturn:
        step = "set up"
        try:
            die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            take_signals()
            if self.group is not None:
                self.group.enter()
            limit_process()
            kept = self._container_namespaces()
            targets = (files.stdin, files.stdout, files.stderr)
            high = [os.dup(fd) for fd in targets]  # beyond what they are put on
            for source, target in zip(high, (0, 1, 2), strict=True):
                os.dup2(source, target)
            close_all_but([0, 1, 2, fault, *kept.values()])
            os.umask(0o022)
            mapped = False
            if self.init_pid:
                step = "enter the job's namespace"
                mapped = self._go_inside(fault)
            step = "enter the job's container"
            for fd in kept.values():
                enter_namespace(fd)
            if mapped or "user" in kept:
                drop_capabilities()
            self._be_apart()
            if files.has_terminal:
                step = "have a terminal"
                be_controlled_by(0)
            else:
                os.setpgid(0, 0)
            step = f"enter {self.cwd}"
            os.chdir(self.cwd)
            step = f"run {self.command[0]}"
            os.execvpe(self.command[0], self.command, self.env)  # nosec B606 - what its user wants to run
        except (OSError, ValueError) as error:
            why = (error.strerror or "") if isinstance(error, OSError) else str(error)
            os.write(fault, f"cannot {step}: {why}".encode("utf-8", "replace")[:4000])
        except BaseException:  # noqa: BLE001 - no error may go up into what is a copy of the shim
            os.write(fault, f"cannot {step}".encode())
        os._exit(EXIT_NOT_STARTED)

    def _container_namespaces(self) -> dict[str, int]:
        """The namespaces in which the job's container is, and the job itself is not. Raises OSError."""
        if not self.inside_pid and self.apart is not None and self.apart["hidden"] and os.geteuid() == 0:
            names = namespaces_apart(self.work_pid, self.init_pid or os.getpid(), ("mnt", "ipc", "uts"))
            if "mnt" not in names and self.apart["level"] == "full":
                raise PermissionError(errno.EAGAIN, "the job is not kept apart yet")
            return {name: open_namespace(self.work_pid, name) for name in names}
        if not self.inside_pid:
            return {}
        names = namespaces_apart(self.inside_pid, self.init_pid or os.getpid(), ("user", "mnt"))
        return {name: open_namespace(self.inside_pid, name) for name in names}

    def _be_apart(self) -> None:
        """Be the uid of the job, without privileges, as it is. Raises OSError."""
        if self.apart is None:
            return
        if self.apart["level"] == "full" and os.geteuid() != 0:
            shut_in(self.apart, self.cwd, os.getppid())
        elif self.apart["level"] == "full":
            for fd in (0, 1, 2) if os.isatty(0) else (1, 2):
                os.fchown(fd, self.apart["uid"], self.apart["uid"])
            become(self.apart, os.getppid())
        elif self.apart["no_new_privs"]:
            with suppress(OSError):
                gain_no_privileges()

    def _go_inside(self, fault: int) -> bool:
        """Enter the namespaces of the job's init, in a child: this process waits for it, and ends as it does.

        Gives whether a user namespace is among them. Raises OSError.
        """
        names = namespaces_apart(self.init_pid, os.getpid(), ("user", "pid", "mnt"))
        for fd in [open_namespace(self.init_pid, name) for name in names]:
            enter_namespace(fd)
        child = os.fork()
        if child == 0:
            end_with_parent()
            return "user" in names
        for fd in (0, 1, 2, fault):
            os.close(fd)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number != signal.SIGKILL:
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        os._exit(os.WEXITSTATUS(status))
