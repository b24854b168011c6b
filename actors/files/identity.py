"""Who this host is (host.json), its admin token, and small files that are either old or new, never half."""

from __future__ import annotations

import json
import os
import secrets
import uuid
from pathlib import Path
from typing import Any

from actorgrid.configs.paths import HostPaths
from actorgrid.errors import DataDirUnusable


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace *path* so that a crash at any moment leaves the old content or the new. Raises DataDirUnusable."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DataDirUnusable(f"cannot write {path}: {error.strerror}", asked=str(path)) from error


def create_secret(path: Path, text: str) -> None:
    """Write *text* into *path* (0600) unless that exists by then: of several makers, the first one's counts for all.

    Raises DataDirUnusable.
    """
    # Complete and on disk before it has its name: nobody reads half of it, after a power failure neither.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    write_atomically(draft, f"{text}\n".encode("ascii"))
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    except OSError as error:
        raise DataDirUnusable(
            f"cannot write {path}: {error.strerror}", asked=str(path), hint="free some room, or mend its permissions"
        ) from error
    finally:
        draft.unlink(missing_ok=True)


def ensure_host_id(paths: HostPaths) -> str:
    """The host's id, made and kept when there is none. Raises DataDirUnusable as ``next_incarnation``."""
    host_id, incarnation = _read(paths)
    if not incarnation:
        _keep(paths, host_id, incarnation)
    return host_id


def next_incarnation(paths: HostPaths) -> tuple[str, int]:
    """The host's id (made at the first start) and the number of this start, both on disk when this returns.

    Raises DataDirUnusable when host.json is damaged: a new id would orphan what the ledger knows of this host.
    """
    host_id, incarnation = _read(paths)
    _keep(paths, host_id, incarnation + 1)
    return host_id, incarnation + 1


def _keep(paths: HostPaths, host_id: str, incarnation: int) -> None:
    text = json.dumps({"host_id": host_id, "incarnation": incarnation}) + "\n"
    write_atomically(paths.host_file, text.encode())


def _read(paths: HostPaths) -> tuple[str, int]:
    """The host's id and the number of its last start; a new id and 0 when there was none."""
    host_id, incarnation = str(uuid.uuid4()), 0
    try:
        found: Any = json.loads(paths.host_file.read_text(encoding="utf-8"))
        host_id, incarnation = str(uuid.UUID(found["host_id"])), int(found["incarnation"])
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise DataDirUnusable(
            f"{paths.host_file} cannot be read: {error}",
            asked=str(paths.host_file),
            hint='write {"host_id": UUID, "incarnation": N} into it by hand, N not less than before',
        ) from error
    return host_id, incarnation


def read_token(path: Path) -> str:
    """The admin token in *path*, made when there is none, and kept to its owner. Raises DataDirUnusable."""
    for _ in range(2):
        try:
            token = path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            create_secret(path, secrets.token_urlsafe(32))
            continue
        except (OSError, ValueError) as error:
            raise DataDirUnusable(
                f"cannot read the token: {error}", asked=str(path), hint="mend or delete the file; a new one is made"
            ) from error
        if len(token) < 16:
            raise DataDirUnusable(
                "the token is too short to keep anyone out",
                asked=str(path),
                found=f"{len(token)} characters",
                hint="delete the file; a new one is made at the next start",
            )
        path.chmod(0o600)
        return token
    raise DataDirUnusable("the token vanished as it was made", asked=str(path))
