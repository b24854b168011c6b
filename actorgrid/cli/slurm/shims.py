"""Small scripts with the names of Slurm's commands, for scripts that call these."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from actorgrid.errors import BadRequest, StorageError

from .group import COMMANDS

MARK = "# written by actorgrid slurm --print-shims"


def write_shims(folder: Path) -> list[Path]:
    """Write one for each command; gives their paths.

    Raises BadRequest for a file of such a name that is not of ours (Slurm's own, perhaps), StorageError.
    """
    paths = [folder / name for name in COMMANDS]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            if path.is_symlink() or (path.exists() and MARK not in path.read_text(errors="replace")):
                raise BadRequest(
                    f"{path} is there, and not a script of ours", asked=str(folder), hint="name an empty folder"
                )
        for path in paths:
            line = f'exec {shlex.quote(sys.executable)} -m actorgrid slurm {path.name} "$@"'
            path.write_text(f"#!/bin/sh\n{MARK}\n{line}\n", encoding="utf-8")
            path.chmod(0o755)
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror}", asked=str(folder)) from error
    return paths
