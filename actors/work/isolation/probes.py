"""What this kernel and this user can keep work in by: each is tried in a process of its own, and the outcome is data.

What is configured, or what a version says, proves nothing: containers, AppArmor and sysctls take things away.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from actorgrid.actors.ledger.isolation_records import Level

from ..groups import PREFIX, KillGroup, kill_folder
from ..limits import limit_pids, writable_cgroup
from ..linux import (
    CLONE_NEWIPC,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_REC,
    MS_SLAVE,
    failure_in_child,
    mount,
    unshare,
)
from . import calls
from .device_filter import attach_filter

TRIED_UID = 1_899_999_999
"""A uid that nobody has: below the first that is given to work."""

MEANS: dict[str, str] = {
    "uid": "work as another uid",
    "mounts": "folders hidden from work, and /tmp of its own",
    "ipc_uts": "shared memory of System V, and a host name, of its own",
    "pids": "pids of its own",
    "capabilities": "capabilities out of the bounding set",
    "no_new_privs": "setuid programs gain nothing",
    "landlock": "Landlock",
    "signals": "signals and ptrace kept in by Landlock",
    "seccomp": "a filter of system calls",
    "pid_limit": "a limit on the processes of a uid",
    "cgroup_memory": "a cgroup v2 that limits memory",
    "cgroup_cpu": "a cgroup v2 that limits processors",
    "cgroup_pids": "a cgroup v2 that limits processes",
    "cgroup_devices": "device nodes that were not granted refused by a cgroup v2",
}
FULL_NEEDS = ("uid", "mounts", "capabilities", "no_new_privs", "seccomp")
SHUT_IN_NEEDS = ("no_new_privs", "landlock", "signals", "seccomp")
"""Of an agent that is not root, and has no other uid for work."""


@dataclass(frozen=True, slots=True)
class Means:
    """What was tried: of each of MEANS, why it is not to be had; empty: it is."""

    refused: Mapping[str, str]
    landlock_abi: int = 0
    as_root: bool = False

    def has(self, name: str) -> bool:
        """Whether it worked when it was tried."""
        return self.refused.get(name, "not tried") == ""

    @property
    def held(self) -> dict[str, bool]:
        """Of each of MEANS, whether it is to be had."""
        return {name: self.has(name) for name in MEANS}

    @property
    def best(self) -> Level:
        """The level up to which this host keeps work apart."""
        if all(map(self.has, FULL_NEEDS if self.as_root else SHUT_IN_NEEDS)):
            return "full"
        return "basic" if self.has("no_new_privs") else "off"

    def missing(self) -> list[str]:
        """What is not to be had, each with why, for people."""
        return [f"{name}: {why}" for name, why in self.refused.items() if why]

    def to_plain(self) -> dict[str, object]:
        """As it is sent between processes."""
        return {"refused": dict(self.refused), "landlock_abi": self.landlock_abi, "as_root": self.as_root}


def means_from(fields: object) -> Means:
    """What :meth:`Means.to_plain` gave; nothing where *fields* are not understood."""
    match fields:
        case {"refused": dict(refused), "landlock_abi": int(abi), "as_root": bool(as_root)}:
            return Means({name: str(refused.get(name, "not tried")) for name in MEANS}, abi, as_root)
    return Means({})


@cache
def try_out() -> Means:
    """Try all of them, once in a process; some 10 ms."""
    refused = {
        "uid": _tried(_another_uid),
        "mounts": _tried(_hide_a_folder),
        "ipc_uts": _tried(lambda: unshare(CLONE_NEWIPC | CLONE_NEWUTS)),
        "pids": _tried(lambda: unshare(CLONE_NEWPID)),
        "capabilities": _tried(_no_capabilities),
        "no_new_privs": _tried(calls.gain_no_privileges),
        "landlock": _tried(_shut_by_landlock),
        "signals": _tried(_keep_signals_in),
        "seccomp": _tried(_refuse_a_call),
        "pid_limit": _tried(_fork_beyond_the_limit),
        "cgroup_memory": _handed_down("memory"),
        "cgroup_cpu": _handed_down("cpu"),
        "cgroup_pids": _handed_down("pids"),
        "cgroup_devices": _tried(_shut_a_device),
    }
    return Means(refused, calls.landlock_abi(), os.geteuid() == 0)


def _tried(attempt: Callable[[], object]) -> str:
    """Why *attempt* fails, made in a child; empty when it does not."""
    number = failure_in_child(attempt)
    return os.strerror(number) if number else ""


def _unless(works: bool) -> None:
    """Raises OSError where a call went through and changed nothing."""
    if not works:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


def _another_uid() -> None:
    parent = os.getppid()
    os.setgroups([])
    os.setresgid(TRIED_UID, TRIED_UID, TRIED_UID)
    os.setresuid(TRIED_UID, TRIED_UID, TRIED_UID)
    try:
        os.kill(parent, 0)
    except PermissionError:
        return
    _unless(False)


def _hide_a_folder() -> None:
    unshare(CLONE_NEWNS)
    mount("none", "/", None, MS_REC | MS_SLAVE)
    mount("actorgrid", "/etc", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _unless(not os.listdir("/etc"))


def _no_capabilities() -> None:
    calls.drop_bounding_set()
    _unless(calls.bounding_set_is_empty())


def _shut_by_landlock() -> None:
    calls.gain_no_privileges()
    if not calls.allow_files([("/usr", calls.READ_EXECUTE)]):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY))
    except PermissionError:
        return
    _unless(False)


def _keep_signals_in() -> None:
    outside = os.getppid()
    calls.gain_no_privileges()
    _unless(bool(calls.allow_files([("/proc", calls.EVERYTHING)])))
    try:
        os.kill(outside, 0)
    except PermissionError:
        pass
    else:
        _unless(False)
    # Its memory and its variables: of a process beyond, the kernel gives neither. Root is beyond this.
    try:
        with open(f"/proc/{outside}/environ", "rb") as file:
            file.read(1)
    except PermissionError:
        return
    _unless(os.geteuid() == 0)


def _handed_down(controller: str) -> str:
    """Why there is no group that limits by that controller; empty: there is."""
    found = writable_cgroup(controller=controller)
    return "" if found is not None else "no cgroup v2 that hands it down is ours to write"


def _fork_beyond_the_limit() -> None:
    if os.geteuid() == 0:
        os.setresuid(TRIED_UID, TRIED_UID, TRIED_UID)
    limit_pids(1)
    try:
        child = os.fork()
    except BlockingIOError:
        return
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    _unless(False)


def _shut_a_device() -> None:
    group = KillGroup(kill_folder() / f"{PREFIX}devices-{os.getpid()}")
    group.make()
    try:
        attach_filter(group.path, [(1, 3)])  # /dev/null

        def enter_and_open() -> None:
            group.enter()
            os.close(os.open(os.devnull, os.O_RDONLY))

        number = failure_in_child(enter_and_open)
    finally:
        group.remove()
    _unless(number == errno.EPERM)


def _refuse_a_call() -> None:
    calls.gain_no_privileges()
    calls.refuse_calls()
    _unless(calls.name_to_handle_at_fails_with() == errno.EPERM)
