"""Directories of sockets that hosts left which are gone: their agent was killed, and their data directory removed.

Nobody else removes them: an orderly stop removes its own, and a start on a data directory what it finds of an earlier
one there.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import socket
import stat
from pathlib import Path

from actorgrid.configs.paths import DATA_LINK, HostPaths

REMOVED_MAX = 32
"""Per start: removing much must not hold up the start of a host."""
LOOKED_AT_MAX = 4096
log = logging.getLogger("actorgrid.boot")


def remove_left(paths: HostPaths) -> int:
    """Remove the directories of sockets beside the host's own that nobody can use any more; gives how many.

    Such a one is this user's, names a data directory that is not there, is called as that one's is, and nobody listens
    in it: work may outlive its agent, and an agent in a container may have a file system that we do not see.
    """
    own, removed = paths.runtime_dir, 0
    prefix = own.name.rpartition("-")[0] + "-"
    try:
        with os.scandir(own.parent) as entries:
            beside = [Path(entry.path) for entry in entries if entry.name.startswith(prefix) and entry.name != own.name]
    except OSError as error:
        log.warning("%s cannot be looked through for what hosts left: %s", own.parent, error)
        return 0
    for folder in beside[:LOOKED_AT_MAX]:
        if removed >= REMOVED_MAX:
            break
        if _is_left(folder):
            shutil.rmtree(folder, ignore_errors=True)
            removed += not folder.exists()
    return removed


def _is_left(folder: Path) -> bool:
    try:
        found = folder.lstat()
        data_dir = Path(os.readlink(folder / DATA_LINK))
    except OSError:
        return False  # it does not say whose it is
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return False
    if not data_dir.is_absolute() or HostPaths(data_dir).runtime_dir != folder:
        return False
    try:
        data_dir.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return not is_listened_in(folder)  # looked at last: it calls at sockets
    except OSError:
        pass  # it may be there: a file system that does not answer, a folder that is closed to us
    return False


def is_listened_in(folder: Path) -> bool:
    """Whether somebody listens at a socket in *folder*, in whatever namespace; where that cannot be told, ``True``."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            try:
                if not stat.S_ISSOCK(os.lstat(path).st_mode):
                    continue
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
                    probe.connect(path)
            except OSError as error:
                if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                    continue
            return True
    return False
