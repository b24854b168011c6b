"""What an attempt needs on its host before it begins: payloads, standard input, the results of jobs it depends on.

On a host that is alone all of it is there. In a cluster it is brought from the hosts that have it.

Steps of a graph take what other steps gave, of which the ledger says where it is. What is nowhere any more (its host is
lost, or keeps it no longer) is no failure of theirs: the graph has it made again (``InputLost``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple, cast

from actorgrid.actors.ledger.field_checks import Plain
from actorgrid.actors.ledger.graph_checks import steps_of
from actorgrid.actors.ledger.graph_records import StepRecord
from actorgrid.actors.ledger.query_answers import GraphSteps
from actorgrid.actors.ledger.record_checks import JOB_FILES
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.errors import (
    ActorError,
    CallTimeout,
    DependencyFailed,
    HostUnreachable,
    InputLost,
    MalformedMessage,
    NotFound,
    PeerGone,
    UnknownJob,
)
from actorgrid.job_outcome import deciding_attempt
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server

from ..ledger.attempt_ids import job_of, number_of, rank_of
from ..ledger.client import LedgerClient
from ..ledger.messages import Query
from ..links.messages import FetchBlobs, FetchResult
from .attempt_dir import AttemptDir
from .secret_files import SecretFiles

BRING_S = 300.0
ASKED_AT_ONCE = 1_000
"""Steps that the ledger is asked about in one question."""
FETCHED_AT_ONCE = 16
LOST_SHOWN = 5
NOT_BROUGHT = (NotFound, HostUnreachable, CallTimeout, PeerGone, ActorError, MalformedMessage)
"""What ``bring`` raises when it may work later, or on another host."""


class BroughtInputs(NamedTuple):
    """Where on this host its secrets are, and results of others: of jobs a path; of steps of a graph, by their numbers,
    a path, and where in that file it begins and how long it is."""

    of_jobs: dict[str, str] = {}
    of_steps: dict[str, list[str | int]] = {}
    secrets: str = ""
    """The folder with a file for each secret; empty: it asked for none."""


class Inputs:
    """Brings the inputs of one host's attempts."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self._server = server
        self._ledger = ledger
        self.secrets = SecretFiles(server)

    async def bring(self, job: JobRecord, attempt_id: str) -> BroughtInputs:
        """Bring the job's payloads here, the results that it takes and its secrets; gives where these are.

        Raises NotFound, HostUnreachable and the like when what is needed is on hosts that do not answer, and when it is
        nowhere any more DependencyFailed, of steps of a graph InputLost.
        """
        brought = await self._bring(job)
        if not job.get("secrets"):
            return brought
        return brought._replace(secrets=await self.secrets.place(attempt_id))

    async def _bring(self, job: JobRecord) -> BroughtInputs:
        digests = tuple(str(job.get(name)) for name in JOB_FILES if job.get(name))
        blobs_dir: Path = self._server.host.paths.blobs_dir
        missing = tuple(digest for digest in digests if not (blobs_dir / digest).exists())
        if missing and self._server.host.enrolment is not None:
            await self._server.call("links", FetchBlobs(missing), BRING_S)
        steps = steps_of(cast("Plain", job)) if "step_of" in job else None
        if steps is not None:
            found = await self._of_steps(str(steps["graph_id"]), steps["inputs"], steps.get("streams", ()))
            if "puts_back" in steps:
                found["puts_back"] = await self._put_back(*steps["puts_back"])
            return BroughtInputs(of_steps=found)
        if job.get("kind") != "function":
            return BroughtInputs()
        return BroughtInputs({name: await self._result_of(name) for name in job.get("depends_on") or ()})

    async def _of_steps(
        self, graph_id: str, numbers: list[int], streams: Collection[int] = ()
    ) -> dict[str, list[str | int]]:
        """Where on this host what these steps gave is; brought from other hosts, some at a time.

        Of *streams* that still run nothing is said: their items are taken as they come.
        """
        records: dict[int, StepRecord] = {}
        for first in range(0, len(numbers), ASKED_AT_ONCE):
            asked = Query("graph_steps", {"graph_id": graph_id, "steps": numbers[first : first + ASKED_AT_ONCE]})
            try:
                found: GraphSteps = await self._server.call("consensus", asked)
            except UnknownJob as error:
                raise DependencyFailed(f"graph {graph_id} is over", asked=graph_id) from error
            records.update(found["steps"])
        running = {number for number in streams if records.get(number, _NOTHING)["state"] == "released"}
        numbers = [number for number in numbers if number not in running]
        records = {number: record for number, record in records.items() if number not in running}
        gone = [number for number in numbers if records.get(number, _NOTHING)["state"] != "succeeded"]
        attempts = {(record["host"], record["attempt_id"]): "" for record in records.values()}
        if not gone:
            await self._bring_results(attempts)
        places: dict[str, list[str | int]] = {}
        for number, record in records.items():
            path = attempts[record["host"], record["attempt_id"]]
            if path:
                places[str(number)] = [path, record["offset"], record["size"]]
            else:
                gone.append(number)
        if gone:
            raise InputLost(
                f"what {len(gone)} steps of graph {graph_id} gave is gone",
                asked=", ".join(map(str, gone[:LOST_SHOWN])) + ", ..." * (len(gone) > LOST_SHOWN),
                hint="it is made again",
                steps=sorted(set(gone))[:ASKED_AT_ONCE],
            )
        return places

    async def _put_back(self, graph_id: str, number: int) -> list[str | int]:
        """Where on this host the outputs of a step of another graph are. Raises InputLost where they are gone."""
        try:
            return (await self._of_steps(graph_id, [number]))[str(number)]
        except (InputLost, DependencyFailed) as error:
            raise InputLost(
                f"what step {number} of graph {graph_id} left is gone", asked=str(number), hint="it runs", steps=[]
            ) from error

    async def _bring_results(self, attempts: dict[tuple[str, str], str]) -> None:
        """Put in where the result file of each of these (host, attempt) is here; empty: it is nowhere any more.

        Raises HostUnreachable and the like where one may be there later.
        """
        left = iter(list(attempts))
        failures: list[Exception] = []
        done = [Waiter() for _ in range(min(FETCHED_AT_ONCE, len(attempts)))]

        async def fetch(mine: Iterable[tuple[str, str]], waiter: Waiter) -> None:
            try:
                for host_id, attempt_id in mine:
                    if failures:
                        break
                    attempts[host_id, attempt_id] = await self._step_result(host_id, attempt_id)
            except NOT_BROUGHT as error:
                failures.append(error)
            waiter.set(None)

        for waiter in done:
            self._server.spawn(fetch(left, waiter))
        for waiter in done:
            await waiter
        if failures:
            raise failures[0]

    async def _step_result(self, host_id: str, attempt_id: str) -> str:
        if host_id == self._server.host.host_id:
            path = AttemptDir(self._server.host.paths.attempts_dir, attempt_id).result
            return str(path) if path.exists() else ""
        try:
            return str(await self._server.call("links", FetchResult(host_id, attempt_id), BRING_S))
        except NotFound:
            return ""
        except HostUnreachable:
            if host_id not in self._ledger.hosts or self._ledger.hosts[host_id]["state"] == "lost":
                return ""
            raise

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


_NOTHING = cast("StepRecord", {"state": ""})


def _number(folder: AttemptDir) -> int:
    return number_of(folder.attempt_id) or 0
