"""What a client asks about jobs: which there are, what they wrote; have them changed, begun again, waited for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from actorgrid.errors import BadRequest, HostUnreachable

from .http import AdminHttp, segment
from .options import options_of
from .output_cursor import OutputCursor

if TYPE_CHECKING:
    from datetime import datetime

    from .client import Client
    from .environment import Environment
    from .graph_run import GraphRun
    from .working_dir import WorkingDir

WAIT_STEP_S = 20.0
PATIENCE_S = 30.0
PAGE = 1_000


class JobCalls:
    """Part of :class:`Client`."""

    http: AdminHttp
    _closed: bool
    _working_dir: WorkingDir | None
    _environment: Environment | None

    def submit_array(
        self,
        command: Sequence[str],
        indexes: str | Iterable[int],
        *,
        at_once: int = 0,
        cwd: str | os.PathLike[str] | None = None,
        checkpoint: str | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> GraphRun:
        """Have a command run once for each index, in ``ACTORGRID_ARRAY_INDEX``: one job, accepted in one commit.

        *indexes*: a range, numbers, or a text as ``"0-999%50"``; *at_once*: how many may run at a time; *checkpoint*: a
        directory, or ``{"path": ..., "every_s": ...}``, below which each has one whose content follows it. Options as
        for ``run``, of each. It goes on when some fail; ``retry`` begins these again. Raises BadRequest, and what a job
        is refused with.
        """
        from actorgrid.job_arrays import JobArray, array_request

        from .graph_run import GraphRun
        from .graph_submit import accept

        array = JobArray.of(indexes, at_once)
        wanted = self._command_job(command, cwd, options)
        if checkpoint is not None:
            wanted["checkpoint"] = {"path": checkpoint} if isinstance(checkpoint, str) else dict(checkpoint)
        return GraphRun(cast("Client", self), accept(self.http, array_request(wanted, array)))

    def _command_job(
        self, command: Sequence[str], cwd: str | os.PathLike[str] | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        """The body of a request for a job that runs *command*. Raises BadRequest."""
        if isinstance(command, (str, bytes)):
            raise BadRequest(
                "a command is a list of words",
                asked=repr(command)[:80],
                hint='client.run(["sh", "-c", "..."]) for a shell',
            )
        chosen = options_of({**options, "durable": True})
        environment = chosen.environment or self._environment
        sent = self._working_dir.send_to_door(self.http) if self._working_dir is not None and cwd is None else None
        work = {
            "working_dir": sent,
            "environment": None if environment is None else environment.send_to_door(self.http, for_functions=False),
            "cwd": None if cwd is None else os.path.abspath(cwd),
            **chosen.job_request(kind="command", command=[str(word) for word in command]),
        }
        return {name: value for name, value in work.items() if value is not None}

    def edit(self, /, job_id: str, **changed: Any) -> dict[str, Any]:
        """Change a job that waits: ``priority`` (0 to 100), ``max_execution_time_s`` (``None``: no limit), ``deadline``
        (seconds from now, a datetime with its zone, or ``None``); what it asks for (``gpus``, ``gpu_memory``,
        ``gpu_models``, ``cpus``, ``memory``); ``labels`` that it is to have beside its others (``None``: no more).

        Gives what it has now. Raises WrongState for a job that has been placed already, UnknownJob, BadRequest, and as
        ``submit_job`` for what no host could give.
        """
        deadline: float | datetime | None = changed.get("deadline")
        if isinstance(deadline, (int, float)):
            changed["deadline_s"] = changed.pop("deadline")
        elif deadline is not None and hasattr(deadline, "isoformat"):
            changed["deadline"] = deadline.isoformat()
        answer: dict[str, Any] = self.http.post(f"/api/jobs/{segment(job_id)}/edit", changed, repeat=True)
        return answer

    def retry(self, job_id: str) -> dict[str, Any]:
        """Have a job wait again that has ended without success: the same job, with one more attempt.

        ``{"job_id", "attempts"}``: how many it has had. Raises WrongState for one that succeeded, has not ended, is a
        graph or ended too long ago, UnknownJob, NotFound where the files that it names are kept no more.
        """
        answer: dict[str, Any] = self.http.post(f"/api/jobs/{segment(job_id)}/retry")
        return answer

    def wait_all(self, job_ids: Iterable[str], timeout: float | None = None) -> dict[str, str]:
        """The state of each of these jobs (at most 1,000) once all have ended. Raises TimeoutError, UnknownJob."""
        return self._wait(list(job_ids), False, timeout)

    def wait_any(self, job_ids: Iterable[str], timeout: float | None = None) -> dict[str, str]:
        """The state of each of these jobs (at most 1,000) once one has ended. Raises TimeoutError, UnknownJob."""
        return self._wait(list(job_ids), True, timeout)

    def _wait(self, job_ids: list[str], any_one: bool, timeout: float | None) -> dict[str, str]:
        answer = wait_for(self.http, job_ids, any_one, timeout)
        if not answer["done"]:
            raise TimeoutError(f"not {'one' if any_one else 'all'} of {len(job_ids)} jobs ended in {timeout} s")
        return {job["job_id"]: job["state"] for job in answer["jobs"]}

    def jobs(
        self,
        state: str | Iterable[str] | None = None,
        limit: int = 100,
        before: float | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        name: str = "",
        user: str = "",
        host: str = "",
        since_s: float | None = None,
    ) -> list[dict[str, Any]]:
        """Jobs, newest first; fields of models.Job. *state*: one or several of the JobState words.

        Only those that have all *labels*, have *name* in their names, are of that *user*, had an attempt on that *host*
        (its id), were submitted in the last *since_s* seconds: chosen by the host, over as many pages as it takes.
        """
        asked: dict[str, Any] = {
            "state": state if state is None or isinstance(state, str) else ",".join(state),
            "before": before,
            "since_s": since_s,
            **{key: value or None for key, value in (("name", name), ("user", user), ("host", host))},
            "label": ",".join(f"{key}={value}" for key, value in labels.items()) if labels else None,
        }
        found: list[dict[str, Any]] = []
        while True:
            answer = self.http.get("/api/jobs", limit=min(limit - len(found), PAGE), **asked)
            found += answer["jobs"]
            if len(found) >= limit or answer.get("next") is None or not (labels or name or host):
                return found
            asked |= {"cursor": answer["next"], "before": None}

    def cancel_labelled(self, /, **labels: str) -> list[str]:
        """Cancel the jobs that have all of these labels, waiting or running; gives their ids. Raises BadRequest."""
        return [job["job_id"] for job in cancel_labelled(self.http, labels)]

    def logs(
        self,
        job_id: str,
        stream: str = "stdout",
        *,
        follow: bool = False,
        attempt: int | None = None,
        offset: int = 0,
        rank: int = 0,
        since_s: float | None = None,
        tail: int | None = None,
        grep: str = "",
    ) -> Iterator[bytes]:
        """Output of a job's latest attempt (or of *attempt*), piece by piece; *follow*: until the job is final.

        Of a gang it is that of the member of *rank*. Chosen where it lies: *since_s*, what came in the last so many
        seconds; *tail*, the last lines; *grep*, the lines with that regular expression (RE2's) in them.

        Survives a restart of the door. Raises UnknownJob, ResultGone, BadRequest for a pattern that is none, and for
        *offset* together with *since_s* or *tail*: each of them says where to begin.
        """
        if offset and (tail is not None or since_s is not None):
            raise BadRequest(
                "offset says where to begin, and so do since_s and tail",
                asked=f"offset={offset}, " + (f"tail={tail}" if tail is not None else f"since_s={since_s}"),
                hint="leave offset out, or say it alone",
            )
        path = f"/api/jobs/{segment(job_id)}/logs"
        place = OutputCursor({"since_s": since_s, "tail": tail, "grep": grep or None}, offset or None)
        while True:
            asked = {"stream": stream, "attempt": attempt, "follow": follow or None, **place.query()}
            if rank:
                asked["rank"] = rank
            try:
                with self.http.stream(path, **asked) as response:
                    before = place.answered(response.headers.get("X-Offset"))
                    while piece := response.read1(65536):
                        new, before = piece[before:], max(0, before - len(piece))
                        place.delivered += len(new)
                        if new:
                            yield new
                return
            except BadRequest:  # which is a ValueError too
                raise
            except (OSError, ValueError, AttributeError) as error:  # what http.client raises when it breaks off
                if self._closed or not follow:
                    raise HostUnreachable("the output broke off", asked=path) from error


def cancel_labelled(http: AdminHttp, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """The jobs with these labels that were cancelled, with the state that they had."""
    cancelled: list[dict[str, Any]] = []
    while True:
        answer = http.post("/api/jobs/cancel", {"labels": dict(labels)}, repeat=True)
        cancelled += answer["jobs"]
        if not answer["more"] or not answer["jobs"]:
            return cancelled


def wait_for(http: AdminHttp, job_ids: list[str], any_one: bool, timeout: float | None) -> dict[str, Any]:
    """``{"jobs": [{"job_id", "state"}], "done"}`` once all of these jobs have ended (or *any_one* of them), or the time
    is over. Goes on through a restart of the door. Raises UnknownJob, HostUnreachable."""
    until = None if timeout is None else time.monotonic() + timeout
    unreachable_since: float | None = None
    while True:
        left_s = WAIT_STEP_S if until is None else max(0.0, min(WAIT_STEP_S, until - time.monotonic()))
        asked = {"job_ids": job_ids, "any": any_one, "wait_s": left_s}
        try:
            answer: dict[str, Any] = http.post("/api/jobs/wait", asked, repeat=True, timeout_s=left_s + 30.0)
            unreachable_since = None
            if answer["done"] or (until is not None and time.monotonic() >= until):
                return answer
        except HostUnreachable:  # the agent restarts: the jobs are still there afterwards
            now = time.monotonic()
            unreachable_since = unreachable_since or now
            if http.closed or now - unreachable_since > PATIENCE_S:
                raise
            time.sleep(0.25)
