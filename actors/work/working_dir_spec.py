"""How work comes to a working directory that was sent: a job by its spec, a session's worker by its client's word."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.actors.ledger.records import working_dir_of
from actorgrid.configs.paths import HostPaths
from actorgrid.errors import MalformedBody, NotSupported, StorageError
from actorgrid.transports.task_frames import WorkingDirFrame
from actorgrid.working_dir import VARIABLE

from .collected_outputs import link_tree
from .work_records import WorkSpec
from .working_dirs import WorkingDirs


def with_working_dir(spec: WorkSpec, job: JobRecord, paths: HostPaths) -> WorkSpec:
    """The spec of an attempt, with the job's working directory where it has one."""
    digest = working_dir_of(job)
    if digest:
        place = str(WorkingDirs(paths.working_dirs_dir).path(digest))
        spec["stdin"] = spec["stdin"] if spec["kind"] == "command" else None
        spec["working_dir"] = {
            "folder": str(paths.working_dirs_dir),
            "digest": digest,
            "archive": str(paths.blobs_dir / digest),
        }
        imports = (place, spec["env"].get("PYTHONPATH", ""))
        spec["env"] |= {VARIABLE: place, "PYTHONPATH": os.pathsep.join(filter(None, imports))}
        spec["cwd"] = place
        own = _own_cwd(spec)
        if own:
            give_own_cwd(spec, Path(own))
    return spec


def give_own_cwd(spec: WorkSpec, own: Path) -> None:
    """Have an attempt whose directory was sent run in a copy of its own, unless it does."""
    wanted, shared = spec.get("working_dir"), spec["cwd"]
    if wanted is None or "own_cwd" in wanted:
        return
    spec["cwd"] = spec["env"][VARIABLE] = wanted["own_cwd"] = str(own)
    imports = spec["env"]["PYTHONPATH"].split(os.pathsep)
    spec["env"]["PYTHONPATH"] = os.pathsep.join(str(own) if path == shared else path for path in imports)


def _own_cwd(spec: WorkSpec) -> str:
    """Where the attempt has its directory for itself: what is kept at its end, or led elsewhere, must be its own."""
    if spec.get("outputs"):
        return spec["outputs"]["own_cwd"]
    if "checkpoint" in spec and spec["checkpoint"]["folder"]:
        return str(Path(spec["checkpoint"]["folder"]).with_name("cwd"))
    return ""


def hold_working_dir(spec: WorkSpec) -> None:
    """Keep the attempt's working directory from being removed, for as long as this process lives."""
    wanted = spec.get("working_dir")
    if wanted:
        WorkingDirs(Path(wanted["folder"])).hold(wanted["digest"])


def unpack_working_dir(spec: WorkSpec) -> None:
    """Unpack the attempt's working directory, unless it is there. Raises MalformedBody, DiskFull, OSError."""
    wanted = spec.get("working_dir")
    if wanted:
        kept = WorkingDirs(Path(wanted["folder"]))
        place = kept.add(wanted["digest"], Path(wanted["archive"]).read_bytes)
        own_cwd = wanted.get("own_cwd", "")
        if own_cwd:
            # Work that is kept apart and has our uid could write through a link into what others are given.
            shared = "apart" not in spec or spec["apart"]["level"] != "full" or os.geteuid() == 0
            link_tree(place, Path(own_cwd), link=shared)


def enter_working_dir(wanted: WorkingDirFrame, kept: WorkingDirs | None) -> bool:
    """Go to a working directory with this worker, and import from it first; unpack it where its archive came along.

    It is held until the worker ends. ``False``: it is not on this host, and its archive is needed. Raises NotSupported,
    MalformedBody, DiskFull, StorageError.
    """
    if kept is None:
        raise NotSupported("this worker keeps no working directories", asked=wanted.digest)
    try:
        return _enter(wanted, kept)
    except OSError as error:
        raise StorageError(f"cannot keep the working directory: {error.strerror}", asked=wanted.digest) from error


def _enter(wanted: WorkingDirFrame, kept: WorkingDirs) -> bool:
    held = kept.hold(wanted.digest)
    archive = wanted.archive
    if archive is None and not kept.has(wanted.digest):
        os.close(held)
        return False
    if archive is not None:
        if hashlib.sha256(archive).hexdigest() != wanted.digest:
            raise MalformedBody("the working directory is not of that digest", asked=wanted.digest)
        kept.add(wanted.digest, lambda: archive)
    place = str(kept.path(wanted.digest))
    os.chdir(place)
    os.environ[VARIABLE] = place
    explicit = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    first = sum(entry in explicit for entry in sys.path[: len(explicit)])
    sys.path[:] = dict.fromkeys([*sys.path[:first], place, *sys.path[first:]])
    return True
