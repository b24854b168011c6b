"""A program that serves work that is kept apart, and is kept apart as that is: as its uid, with what that finds.

It is started by the agent as a process of its own, whose arguments are: the root of our code, the data directory, the
uid, a folder of the agent's for this program (``own_folders.py``), and the command. The folders that its variables name
are made by the uid itself, where they are not there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from actorgrid.configs.paths import HostPaths

from .confine import become, enter_own_namespaces
from .own_folders import HOME, make_own_folders
from .plan import full_spec

START_LOG = "start.log"
FOLDERS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
_AGENTS = ("TMPDIR", "XDG_RUNTIME_DIR")
"""By which the agent's paths are found: nothing of them is there for the program."""


def main() -> NoReturn:
    """Be the program that the arguments of this process say, kept apart; or leave the reason in its folder."""
    _, _, data_dir, uid, folder, *command = sys.argv
    log = os.open(os.path.join(folder, START_LOG), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _be(data_dir, int(uid), folder, command)
    except OSError as error:
        os.write(log, f"it cannot be kept apart: {error}\n".encode())
        sys.exit(1)


def _be(data_dir: str, uid: int, folder: str, command: list[str]) -> NoReturn:
    parent_pid = os.getppid()
    paths = HostPaths(Path(data_dir))
    spec = full_spec(Path(folder), uid, paths, [command[0]] if os.path.isabs(command[0]) else [])
    spec["shared_memory"] = str(paths.shared_memory_dir(uid))
    home = os.path.join(folder, HOME)
    os.umask(0o022)
    make_own_folders({**spec, "read": []}, Path(folder, "none"))
    enter_own_namespaces(spec, home)
    become(spec, parent_pid)
    os.umask(0o077)
    os.chdir(home)
    env = {name: value for name, value in os.environ.items() if name not in _AGENTS}
    for name in FOLDERS:
        if name in env:
            os.makedirs(env[name], mode=0o700, exist_ok=True)
    os.execve(command[0], command, {**env, "HOME": home})  # nosec B606 - the program it is to be
