"""A container whose processes have the uid of their user, and whose runtime root starts: what it is told, and not.

Podman and Docker take the image, mounts and variables from whoever sends the job, and act on them as root. So what a
user can choose is looked at with the rights of that uid, and what root runs is told its own variables. What is refused
here, the runtime would do. What holds the processes then is the kernel: their uid, no capabilities, no_new_privs, the
runtime's filter of calls, namespaces of its own for mounts, pids, ipc and host name. The network is the host's.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import shutil
import stat
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from actorgrid.container_words import Mount, is_path
from actorgrid.errors import IsolationNotGiven

from .isolation.confine import is_below
from .limits import pids_max

RUNTIMES_APART = ("podman", "docker")
"""Apptainer makes its containers as whoever runs it, by user namespaces, which work of a uid is refused."""
_AGENTS = ("PATH", "HOME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
_AGENTS_OF_RUNTIMES = ("CONTAINERS_", "DOCKER_", "REGISTRY_AUTH_FILE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_PROCESSES_OWN = ("/proc", "/sys", "/dev")
_NOT_FROM_REGISTRIES = re.compile(
    r"(?!docker://)[A-Za-z0-9-]+:(//|/|\.)|(dir|oci|oci-archive|docker-archive|sif|tarball):"
)
_NAME = re.compile(r"[^\s=#*\0][^\s=\0]*")
_ONE_LINE = re.compile(r"[^\n\r\0]*")
_NVIDIA = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_MIG_CONFIG_DEVICES")
"""By these a hook of NVIDIA's hands devices out, whoever was granted them; an image may have them, too."""


@cache
def runtimes_apart(allowed: str, search: str) -> tuple[str, ...]:
    """Which runtimes of this host run containers whose processes have a uid of their user's, as found first.

    *allowed*: the setting ``work.containers``; *search*: the agent's PATH.
    """
    names = (name for name in RUNTIMES_APART if allowed in ("auto", name))
    return tuple(name for name in names if shutil.which(name, path=search) is not None)


def runtime_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What of the agent's *environment* its runtimes find; nothing of the work's, which they would obey as root."""
    return {
        name: value
        for name, value in environment.items()
        if name in _AGENTS or name.upper().startswith(_AGENTS_OF_RUNTIMES)
    }


def words_apart(runtime: str, uid: int) -> list[str]:
    """The options of ``run`` by which nothing in the container is more than that uid."""
    most, (soft, hard) = pids_max(), resource.getrlimit(resource.RLIMIT_NOFILE)
    # Without a group by name the image's own list of groups is not looked at: it could name the host's.
    words = ["--user", f"{uid}:{uid}", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    words += ["--ipc", "private", "--cgroupns", "private", "--userns", "host", "--log-driver", "none"]
    # What is in the machine's configuration of the runtime is not what was promised.
    words += ["--pid", "private", "--uts", "private", "--http-proxy=false"] if runtime == "podman" else []
    words += ["--pids-limit", str(most), "--ulimit", f"nproc={most}:{most}", "--ulimit", f"nofile={soft}:{hard}"]
    return words


def check_image(image: str) -> None:
    """Raises IsolationNotGiven for an image that is a file of the host's: root would read it, whosever it is."""
    if image.startswith(("/", ".", "~")) or _NOT_FROM_REGISTRIES.match(image):
        raise _refused("an image that is a file of the host's", image, "name one of a registry, or of the host's store")


def own_mounts(mounts: Iterable[Mount], uid: int, attempt: str, hidden: Iterable[str]) -> list[Mount]:
    """The *mounts*, each from where its source leads to. Raises IsolationNotGiven for what that uid may not have.

    *hidden*: the agent's folders, of which it has its *attempt*'s alone.
    """
    hidden, found = list(hidden), []
    for mount in mounts:
        source, target = mount["source"], os.path.normpath(mount["target"])
        if not is_path(source) or not is_path(target):
            raise _refused("a path with one of the signs , : in it cannot be mounted", source)
        if target == "/" or any(is_below(target, folder) for folder in _PROCESSES_OWN):
            raise _refused("a mount in place of what the container's own kernel files are", target)
        if source == os.path.normpath(source) and attempt in (source, os.path.dirname(source)):
            found.append(mount)  # its folders were made by the agent, and nothing of it has run
            continue
        found.append({**mount, "source": _own_source(source, uid, hidden), "target": target})
    return found


def _own_source(source: str, uid: int, hidden: Iterable[str]) -> str:
    try:
        real = _real_path_as(source, uid)
    except OSError as error:
        why = f"{source}: {error.strerror}"
        raise _refused("a path of the host that its uid may not enter cannot be mounted", why) from error
    for folder in (*_PROCESSES_OWN, *hidden):
        if is_below(real, folder) or is_below(folder, real):
            raise _refused("what is the agent's or the kernel's, or around that, cannot be mounted", source)
    # Whoever can put something else at a part of the path can do so before root mounts it.
    parts = Path(real).parts
    for depth in range(1, len(parts)):
        above = os.stat(os.path.join(*parts[:depth]))
        if above.st_uid != 0 or (
            above.st_mode & 0o022 and not _is_kept(above.st_mode, os.path.join(*parts[: depth + 1]))
        ):
            where = os.path.join(*parts[:depth])
            raise _refused(
                "the way to it can be changed by others than root", source, f"mount {where}, or what root has"
            )
    return real


def _is_kept(mode: int, entry: str) -> bool:
    """Whether in a folder of that mode, which others can write, nobody but root can replace *entry*."""
    return bool(mode & stat.S_ISVTX) and os.lstat(entry).st_uid == 0


def _real_path_as(path: str, uid: int) -> str:
    """Where *path* leads to with the rights of *uid*. Raises OSError."""
    os.setgroups([])
    os.setegid(uid)
    os.seteuid(uid)
    try:
        held = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            mode = os.fstat(held).st_mode
            if stat.S_ISDIR(mode) and not os.access(f"/proc/self/fd/{held}", os.X_OK, effective_ids=True):
                raise PermissionError(13, "Permission denied")
            if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
                raise PermissionError(1, "it is neither a directory nor a regular file")
            return os.readlink(f"/proc/self/fd/{held}")
        finally:
            os.close(held)
    finally:
        os.seteuid(0)
        os.setegid(0)


def variables_file(folder: str, env: Mapping[str, str], names: Iterable[str]) -> str:
    """A file of these variables for the runtime, which root alone can read. Raises IsolationNotGiven, OSError."""
    lines = []
    for name in names:
        # In such a file a name ends at the first =, and what is around it, or behind a #, is none.
        if not _ONE_LINE.fullmatch(env[name]) or not _NAME.fullmatch(name):
            raise _refused("a variable of several lines, or a name with such signs, cannot be told to it", name)
        lines.append(f"{name}={env[name]}\n")
    data = "".join(lines).encode("utf-8", "surrogateescape")
    path = os.path.join(folder, f"variables-{hashlib.sha256(data).hexdigest()[:16]}")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    return path


def without_nvidias(names: Iterable[str]) -> list[str]:
    """The *names* but for those by which NVIDIA's hooks hand out devices."""
    return [name for name in names if name not in _NVIDIA]


def _refused(what: str, asked: str, hint: str = "") -> IsolationNotGiven:
    hint = hint or "docs/containers.md says what a container at full can have"
    return IsolationNotGiven(
        f"a container whose work is kept apart cannot have it: {what}", asked=asked[:200], hint=hint
    )
