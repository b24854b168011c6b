"""How work has the checkpoint that it begins with: what its spec says, and the directory that is unpacked for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from actorgrid.actors.ledger.attempt_ids import job_of
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.checkpoints import ANSWERS_VARIABLE, HEAD_BYTES, SPOOL_VARIABLE, STATE_VARIABLE, parse_head
from actorgrid.configs.paths import HostPaths
from actorgrid.errors import DiskFull, MalformedBody
from actorgrid.task_context import CHECKPOINT_DIR, CHECKPOINT_FROM

from .apart_records import ApartSpec
from .archives import checked_bytes, unpack
from .attempt_dir import AttemptDir
from .checkpoint_packing import PACKED, list_directory
from .checkpoint_spool import ANSWERS, DIRECTORY, SPOOL, UNPACKING, begin_with
from .isolation.work_folder import owner_of
from .work_records import WorkSpec


def add_checkpoint(spec: WorkSpec, job: JobRecord, paths: HostPaths, rank: int | None) -> None:
    """Add to an attempt's spec, and to its variables, what its job has of checkpoints; *rank*: in its gang."""
    wish = job.get("checkpoint")
    if wish is None:
        return
    own = AttemptDir(paths.attempts_dir, spec["id"]).path
    state = str(paths.blobs_dir / job["checkpoint_digest"]) if "checkpoint_digest" in job else ""
    folder = str(own / DIRECTORY) if "path" in wish else ""
    spec["checkpoint"] = {
        "state": state,
        "folder": folder,
        "link": "",
        "every_s": wish.get("every_s"),
        "takes": not rank,
    }
    if folder:
        spec["env"][CHECKPOINT_DIR] = folder
    else:
        spec["env"] |= {STATE_VARIABLE: state, SPOOL_VARIABLE: str(own)}
    if "last_checkpoint" in job:
        spec["env"][CHECKPOINT_FROM] = str(job["last_checkpoint"]["attempt"])


def with_checkpoint_link(spec: WorkSpec, job: JobRecord) -> WorkSpec:
    """The spec, once it is known where the work runs: the path that it has for its directory lies there."""
    wish = job.get("checkpoint")
    if wish is not None and "path" in wish:
        spec["checkpoint"]["link"] = os.path.join(spec["cwd"], wish["path"])
    return spec


def own_checkpoint(spec: WorkSpec, apart: ApartSpec, former_cwd: str) -> None:
    """Add to the spec of work that is kept apart, and so may write nothing in its attempt's folder, what it owns there
    for its checkpoints. *former_cwd*: where it was to run before that was known."""
    wanted = spec.get("checkpoint")
    if wanted is None:
        return
    if wanted["folder"]:
        wanted["link"] = os.path.join(spec["cwd"], os.path.relpath(wanted["link"], former_cwd))
        apart["own"] = [wanted["folder"]]
        return
    spool, answers = os.path.join(apart["attempt"], SPOOL), os.path.join(apart["attempt"], ANSWERS)
    spec["env"] |= {SPOOL_VARIABLE: spool, ANSWERS_VARIABLE: answers}
    apart["own"] = [spool]
    apart["read"] += [answers, *([wanted["state"]] if wanted["state"] else [])]


def unpack_checkpoint(spec: WorkSpec) -> None:
    """Make the directory of the attempt, with what the last checkpoint holds: its work's own, and nobody else's.

    Raises MalformedBody, DiskFull, OSError.
    """
    wanted, owner = spec.get("checkpoint"), owner_of(spec)
    if not wanted or not wanted["folder"]:
        return
    folder = Path(wanted["folder"])
    # Whole or not at all: whoever finds it takes what it holds for the work's.
    draft = folder.with_name(UNPACKING)
    try:
        if wanted["state"]:
            with open(wanted["state"], "rb") as file:
                check_head(file.read(HEAD_BYTES), spec["job_id"])
                checked_bytes(file, PACKED)
                unpack(file, draft, PACKED, writable=True)
                if owner is not None:
                    _give(draft, owner)
                if wanted["takes"]:  # as long as it is like that, it is what the job has already
                    begin_with(folder.parent, list_directory(draft, owner).digest)
        else:
            draft.mkdir(mode=0o700)
            if owner is not None:
                _give(draft, owner)
        draft.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull("the disk is too full for the checkpoint", found=str(error)) from error
        raise


def _give(folder: Path, owner: int) -> None:
    """Have all that was just unpacked be of that uid: it is where only we can come to."""
    if owner != os.geteuid():
        for at, _, names in os.walk(folder):
            os.lchown(at, owner, owner)
            for name in names:
                os.lchown(os.path.join(at, name), owner, owner)


def check_head(head: bytes, job_id: str) -> None:
    """Raises MalformedBody for a file that is no checkpoint of that job."""
    found = parse_head(head)
    if found is None or job_of(found[0]) != job_id:
        raise MalformedBody("what lies there is no checkpoint of this job", found="" if found is None else found[0])
