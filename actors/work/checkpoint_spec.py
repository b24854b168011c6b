"""How work has the checkpoint that it begins with: what its spec says, and the directory that is unpacked for it."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from actorgrid.actors.ledger.attempt_ids import attempt_of, job_of, rank_of
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.checkpoints import (
    HEAD_BYTES,
    SPOOL_VARIABLE,
    STATE_VARIABLE,
    parse_head,
)
from actorgrid.configs.paths import HostPaths
from actorgrid.errors import DiskFull, MalformedBody, WrongState
from actorgrid.task_context import CHECKPOINT_DIR, CHECKPOINT_FROM

from .archives import checked_bytes, unpack
from .attempt_dir import AttemptDir, is_id
from .checkpoint_packing import PACKED, list_directory
from .checkpoint_spool import DIRECTORY, UNPACKING, begin_with
from .work_records import WorkSpec

LINK_TRIES = 100


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


def unpack_checkpoint(spec: WorkSpec) -> None:
    """Make the directory of the attempt, with what the last checkpoint holds, and the link to it.

    Raises MalformedBody, DiskFull, WrongState where something else has the link's place, OSError.
    """
    wanted = spec.get("checkpoint")
    if not wanted or not wanted["folder"]:
        return
    folder = Path(wanted["folder"])
    try:
        if wanted["state"]:
            with open(wanted["state"], "rb") as file:
                check_head(file.read(HEAD_BYTES), spec["job_id"])
                checked_bytes(file, PACKED)
                # Whole or not at all: whoever finds it takes what it holds for the work's.
                draft = folder.with_name(UNPACKING)
                unpack(file, draft, PACKED, writable=True)
                if wanted["takes"]:  # as long as it is like that, it is what the job has already
                    begin_with(folder.parent, list_directory(draft).digest)
                draft.rename(folder)
        else:
            folder.mkdir(mode=0o700)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull("the disk is too full for the checkpoint", found=str(error)) from error
        raise
    _link(Path(wanted["link"]), folder)


def check_head(head: bytes, job_id: str) -> None:
    """Raises MalformedBody for a file that is no checkpoint of that job."""
    found = parse_head(head)
    if found is None or job_of(found[0]) != job_id:
        raise MalformedBody("what lies there is no checkpoint of this job", found="" if found is None else found[0])


def _link(link: Path, folder: Path) -> None:
    """Make the link; where members of a gang share a directory, it is that of rank 0, whose files are kept."""
    link.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(LINK_TRIES):
        try:
            link.symlink_to(folder)
            return
        except FileExistsError:
            if rank_of(folder.parent.name) and _is_of_same_attempt(link, folder):
                return
            _make_way(link, folder)
    raise WrongState("another job takes the place of the checkpoint directory just now", asked=str(link))


def _is_of_same_attempt(link: Path, folder: Path) -> bool:
    try:
        before = Path(os.readlink(link))
    except OSError:
        return False
    return before.name == DIRECTORY and attempt_of(before.parent.name) == attempt_of(folder.parent.name)


def _remove_former(link: Path, folder: Path) -> None:
    """Remove a link of the same job, but not that of rank 0, which may have taken its place just now."""
    aside = link.with_name(f".{link.name[:64]}.{secrets.token_hex(8)}")
    try:
        link.rename(aside)
    except FileNotFoundError:
        return
    try:
        taken = Path(os.readlink(aside))
    except OSError:
        aside.rename(link)  # no link any more: whose it is, the next look says
        return
    if rank_of(folder.parent.name) and rank_of(taken.parent.name) == 0 and _is_of_same_attempt(aside, folder):
        aside.rename(link)
    else:
        aside.unlink(missing_ok=True)


def _make_way(link: Path, folder: Path) -> None:
    """Remove the link of an attempt that is over. Raises WrongState for anything else in its place."""
    try:
        before = Path(os.readlink(link))
    except OSError:
        raise WrongState(
            "something else lies where the checkpoint directory is to be",
            asked=str(link),
            hint="move it away, or name another path; ACTORGRID_CHECKPOINT_DIR leads there too",
        ) from None
    attempts_dir = folder.parent.parent
    attempt_id = before.parent.name
    if before.name == DIRECTORY and is_id(attempt_id) and job_of(attempt_id) == job_of(folder.parent.name):
        _remove_former(link, folder)  # of an attempt before, also on another host whose files are seen here
        return
    if before.name != DIRECTORY or before.parent.parent != attempts_dir or not is_id(attempt_id):
        raise WrongState(
            "a link lies where the checkpoint directory is to be", asked=str(link), found=str(before), hint="remove it"
        )
    if AttemptDir(attempts_dir, attempt_id).shim_pid() is not None:
        raise WrongState(
            "a running job has its checkpoint directory in that place",
            asked=str(link),
            found=attempt_id,
            hint="give each of several jobs in one directory a path of its own: --checkpoint ckpt-1",
        )
    link.unlink(missing_ok=True)
