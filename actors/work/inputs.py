"""What an attempt needs on its host before it begins: payloads, standard input, the results of jobs it depends on.

On a host that is alone all of it is there. In a cluster it is brought from the hosts that have it.
"""

from __future__ import annotations

from pathlib import Path

from actorgrid.actors.ledger.record_checks import JOB_FILES
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.errors import (
    ActorError,
    CallTimeout,
    DependencyFailed,
    HostUnreachable,
    MalformedMessage,
    NotFound,
    PeerGone,
)
from actorgrid.job_outcome import deciding_attempt
from actorgrid.supervisors.server import Server

from ..ledger.attempt_ids import job_of, number_of, rank_of
from ..ledger.messages import Query
from ..links.messages import FetchBlobs, FetchResult
from .attempt_dir import AttemptDir

BRING_S = 300.0
NOT_BROUGHT = (NotFound, HostUnreachable, CallTimeout, PeerGone, ActorError, MalformedMessage)
"""What ``bring`` raises when it may work later, or on another host."""


class Inputs:
    """Brings the inputs of one host's attempts."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def bring(self, job: JobRecord) -> dict[str, str]:
        """Bring the job's payloads here; gives the paths of the results it depends on, by job.

        Raises NotFound, HostUnreachable and the like when what is needed is on hosts that do not answer, and
        DependencyFailed when it is nowhere any more.
        """
        digests = tuple(str(job.get(name)) for name in JOB_FILES if job.get(name))
        blobs_dir: Path = self._server.host.paths.blobs_dir
        missing = tuple(digest for digest in digests if not (blobs_dir / digest).exists())
        if missing and self._server.host.enrolment is not None:
            await self._server.call("links", FetchBlobs(missing), BRING_S)
        if job.get("kind") != "function":
            return {}
        return {name: await self._result_of(name) for name in job.get("depends_on") or ()}

    async def _result_of(self, job_id: str) -> str:
        """The result file of the attempt that decided a dependency (a command leaves none)."""
        here = self._here(job_id)
        if self._server.host.enrolment is None:
            return str(here)
        # Asked also when there is a result here: it may be that of an attempt which was not the one that counted.
        record = await self._server.call("consensus", Query("job", {"job_id": job_id}))
        decided = {} if record is None else deciding_attempt(record)
        if decided.get("result_bytes") is None:
            return str(here)
        host_id, attempt_id = decided["host"], decided["allocation_id"]  # of a gang: rank 0's
        if host_id == self._server.host.host_id:
            return str(AttemptDir(self._server.host.paths.attempts_dir, attempt_id).result)
        try:
            return str(await self._server.call("links", FetchResult(host_id, attempt_id), BRING_S))
        except NotFound as error:
            raise DependencyFailed(
                f"the result of job {job_id} is not kept any more",
                asked=job_id,
                found=f"host {host_id} has it no more",
                hint="work.keep_finished_jobs says how many are; submit the job again",
            ) from error
        except HostUnreachable as error:
            raise HostUnreachable(
                f"the result of job {job_id} is on host {host_id}, which does not answer",
                asked=job_id,
                found=error.found,
                hint="it is tried again; when the host is lost for good, submit the job again",
            ) from error

    def _here(self, job_id: str) -> Path:
        attempts_dir: Path = self._server.host.paths.attempts_dir
        found = [
            folder
            for folder in attempts_dir.glob(f"{job_id}.*")
            if job_of(folder.name) == job_id and not rank_of(folder.name) and (folder / "result.bin").exists()
        ]
        if not found:
            return AttemptDir(attempts_dir, f"{job_id}.0").result
        return max((AttemptDir(attempts_dir, folder.name) for folder in found), key=_number).result


def _number(folder: AttemptDir) -> int:
    return number_of(folder.attempt_id) or 0
