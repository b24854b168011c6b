"""Secrets of work on its host: a folder for each attempt, in memory, with a file (0400) for each secret.

The door of the host writes them (``gateway/secret_releases.py``). They are gone with the attempt: its shim takes them
away, and the agent what a shim that was killed has left, at its next start too. They are never on a disk: a host that
has no folder in memory (tmpfs) is given none.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from actorgrid.actors.files.untrusted_files import read_whole
from actorgrid.errors import DependencyFailed
from actorgrid.secret_words import FOLDER_VARIABLE, SECRET_BYTES_MAX, wish_of
from actorgrid.supervisors.server import Server

from ..gateway.messages import PlaceSecrets
from ..ledger.record_types import JobRecord
from .environment import host_tag
from .isolation.own_folders import SECRETS
from .work_records import SecretsSpec, WorkSpec

PLACE_S = 60.0
IN_MEMORY = ("/dev/shm", "/run/shm", "/run")  # nosec B108 - folders in memory, in which we make one of our own (0700)
TMPFS, RAMFS = 0x01021994, 0x858458F6


class SecretFiles:
    """Of one host's attempts."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._name = f"actorgrid-secrets-{host_tag(server.host.paths.data_dir)}"
        self._held: set[str] = set()

    def recover(self, live: Mapping[str, object]) -> None:
        """After a start: take away what is of no attempt that lives."""
        for parent in IN_MEMORY:
            folder = Path(parent, self._name)
            found = os.listdir(folder) if folder.is_dir() and _is_ours(folder) else []
            for attempt_id in found:
                if attempt_id in live:
                    self._held.add(attempt_id)
                else:
                    shutil.rmtree(folder / attempt_id, ignore_errors=True)

    async def place(self, attempt_id: str) -> str:
        """Have the attempt's secrets here; gives their folder. Raises DependencyFailed, and what may work later."""
        folder = self._folder() / attempt_id
        self._held.add(attempt_id)
        await self._server.call("gateway", PlaceSecrets(attempt_id, str(folder)), PLACE_S)
        return str(folder)

    def remove(self, attempt_id: str) -> None:
        """Take away the secrets of an attempt that is over."""
        if attempt_id in self._held:
            self._held.discard(attempt_id)
            for parent in IN_MEMORY:
                shutil.rmtree(Path(parent, self._name, attempt_id), ignore_errors=True)

    def _folder(self) -> Path:
        for parent in IN_MEMORY:
            if not _is_in_memory(parent) or not os.access(parent, os.W_OK):
                continue
            folder = Path(parent, self._name)
            folder.mkdir(mode=0o700, exist_ok=True)
            if _is_ours(folder):
                return folder
        raise DependencyFailed(
            "this host has no folder in memory to put secrets into",
            asked=", ".join(IN_MEMORY),
            hint="mount a tmpfs there (in a container: --shm-size, or --tmpfs /run/shm)",
        )


def secrets_spec(job: JobRecord, folder: str) -> SecretsSpec:
    """What the shim is told of the secrets of *job*, which lie in *folder*."""
    variables = {variable: name for name, variable in map(wish_of, job.get("secrets", ())) if variable}
    return {"folder": folder, "variables": variables}


def add_variables(spec: WorkSpec) -> None:
    """Put the secrets that are asked for as variables into the environment of what begins now: in the memory of this
    process alone, as the spec lies on the disk. Raises OSError, ValueError."""
    secrets = spec.get("secrets")
    if secrets is None:
        return
    apart = spec.get("apart")
    is_mounted = apart is not None and "secrets" in apart
    spec["env"][FOLDER_VARIABLE] = (
        os.path.join(apart["attempt"], SECRETS) if apart and is_mounted else secrets["folder"]
    )
    for variable, name in secrets["variables"].items():
        value = read_whole(Path(secrets["folder"]), name, SECRET_BYTES_MAX) or b""
        if b"\0" in value:
            raise ValueError(f"the secret {name} holds a NUL byte, and is no variable: read it from its file")
        spec["env"][variable] = os.fsdecode(value)


def remove_secrets(spec: WorkSpec) -> None:
    """Take the secrets of work that is over away."""
    if "secrets" in spec:
        shutil.rmtree(spec["secrets"]["folder"], ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder, no link, of our own, that nobody else opens: /dev/shm is everybody's."""
    found = folder.lstat()
    return found.st_uid == os.geteuid() and (found.st_mode & 0o170077) == 0o040000


def _is_in_memory(path: str) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    found = (ctypes.c_long * 64)()  # struct statfs begins with f_type, and is much shorter than this
    return libc.statfs(os.fsencode(path), ctypes.byref(found)) == 0 and (found[0] & 0xFFFFFFFF) in (TMPFS, RAMFS)
