"""How work is kept in where its agent is not root, and so has no other uid for it: by Landlock and a filter of calls.

It has the agent's uid, and the kernel would let it do what the agent may. Landlock leaves it the system's programs, its
own folders and its directory, and keeps its signals and its ptrace to itself. It does not reach sockets that are files,
by which servers of the agent speak to each other and believe a uid: so work makes no such sockets. What a uid may do
to its own files without opening them (chmod, times) stays possible.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path

from ..apart_records import ApartSpec
from ..linux import die_with_parent
from . import calls
from .confine import is_below
from .own_folders import HOME, INPUTS, TAKERS, TMP, is_own_cwd

_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
_FACTS = ("/etc", "/sys", "/run/systemd/resolve", "/run/nscd")
_KERNEL = ("/proc", "/dev")
"""To write as well: CUDA does, below /proc, and devices are for whoever their modes let."""


def shut_in(spec: ApartSpec, cwd: str, parent_pid: int) -> None:
    """Leave this process, and all that it starts, its own alone. Raises OSError.

    PermissionError for a directory that is the agent's, or around it: what is below what is allowed is allowed.
    """
    attempt = spec["attempt"]
    own = [os.path.join(attempt, HOME), os.path.join(attempt, TMP), *spec.get("own", ())]
    own += [spec["environments"]] if "environments" in spec else []
    # Held from here on: its name may stand for another directory a moment later.
    held, entered = -1, cwd
    with suppress(FileNotFoundError, NotADirectoryError):  # which is told where it is entered
        held = os.open(cwd, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        entered = os.readlink(f"/proc/self/fd/{held}")
        own.append(f"/proc/self/fd/{held}")
    if not is_own_cwd(cwd, attempt) and any(
        is_below(folder, entered) or is_below(entered, folder) for folder in spec["hidden"]
    ):
        raise PermissionError(errno.EACCES, "files of the agent are in that directory, or around it")
    python = (sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[3]))
    rules = [(path, calls.READ_EXECUTE) for path in (*_PROGRAMS, *python)]
    given = [os.path.join(attempt, name) for name in ("credential.json", INPUTS, TAKERS)]
    rules += [(path, calls.READ_ONLY) for path in (*_FACTS, *spec["read"], *given)]
    rules += [(path, calls.EVERYTHING) for path in (*_KERNEL, *own)]
    die_with_parent(parent_pid)
    calls.gain_no_privileges()
    if not calls.allow_files(rules):
        raise OSError(errno.EOPNOTSUPP, "Landlock is not on")
    if held >= 0:
        os.close(held)
    calls.refuse_calls(unix_sockets=False)
