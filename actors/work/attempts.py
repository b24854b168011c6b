"""Attempts on this host: start what the ledger granted, follow each to its end, tell the ledger.

One coroutine per attempt reads its folder and acts on what it finds, so that starting, adopting after our own
restart and collecting what ended meanwhile are one and the same path.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from actorgrid.actors.ledger.answers import EndAnswer, LateSuccessAnswer, StartAnswer
from actorgrid.actors.ledger.attempt_ids import job_of, number_of
from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.command import cluster_version
from actorgrid.actors.ledger.commands import EndAttempt, StartAttempt, TakeSuccess
from actorgrid.actors.ledger.commands.jobs import BEHIND_SINCE
from actorgrid.actors.ledger.record_types import NO_JOB, AllocationRecord, JobRecord
from actorgrid.actors.ledger.records import END_FACTS, isolation_of
from actorgrid.actors.ledger.usage_records import UsageRecord
from actorgrid.errors import (
    ActorGridError,
    DependencyFailed,
    DiskFull,
    HostsTooOld,
    InputLost,
    IsolationNotGiven,
    LedgerRefused,
    NotARegularFile,
    WorkerLost,
)
from actorgrid.supervisors.server import Server

from .attempt_dir import AttemptDir, is_id
from .attempt_results import end_of, result_sync
from .attempt_specs import attempt_spec
from .checkpoint_keeper import CheckpointKeeper
from .credential_files import CredentialFiles
from .environment import host_tag
from .function_workers import FunctionWorkers, ServedCall
from .gathered_reports import GatheredReports
from .housekeeping import end_marked
from .inputs import NOT_BROUGHT, Inputs
from .isolation.host import WorkIsolation
from .lease_renewer import LeaseRenewer
from .linux import boot_id
from .live_attempt import NO_JOBS, LiveAttempt, ids_of, is_over, reason_to_end
from .outcomes import (
    ASKED_TO_END,
    GANG,
    GIVEN_BACK,
    PREEMPTED,
    SUPERSEDED,
    outcome_of_lost,
    outcome_of_not_begun,
    outcome_of_not_started,
    outcome_of_unkept,
    retry_delay_s,
)
from .process_tree import send
from .shim_link import ShimLink
from .standing import STANDING_S, StandingAttempts
from .work_records import AttemptEnd, WorkStatus, uid_of
from .zygote_link import ZygoteLink

NO_MORE_TRIES = (DependencyFailed, InputLost, IsolationNotGiven)
START_TRIES = 10
LOOK_AGAIN_S = 0.05
COMMIT_AGAIN_S = 0.5
TOLD_LATER_S = 0.03
"""The start of a call that a worker serves is told so much later: most have ended by then, and one entry tells both."""


class HostAttempts:
    """All attempts of this host that the ledger does not know the end of. At most ``work.max_attempts`` run."""

    def __init__(
        self, server: Server, ledger: LedgerClient, zygote: ZygoteLink, renewer: LeaseRenewer, files: CredentialFiles
    ) -> None:
        self._credentials = files
        self.started_total, self.adopted_total = 0, 0
        self.ended_total: dict[str, int] = {}
        self.live: dict[str, LiveAttempt] = {}
        self._server = server
        self._ledger = ledger
        self._zygote = zygote
        self._renewer = renewer
        self._tag, self._boot = host_tag(server.host.paths.data_dir), boot_id()
        self._inputs, self._results = Inputs(server, ledger), result_sync(server.runtime)
        self.checkpoints = CheckpointKeeper(server, ledger)
        self.functions = FunctionWorkers(server, zygote, self._tag)
        self.apart = WorkIsolation(server, zygote)
        self.standing = StandingAttempts()
        self._looks_at_standing = False
        self._gathered = GatheredReports(server.runtime)
        self._waiting: dict[str, float] = {}  # beyond the most that may run, in order; by when each is to begin
        self._stopping = False
        self._left = False
        self.unreadable: list[AttemptDir] = []  # begun, and their work has written over their specs
        self.ledger_known = False  # set by the manager once our copy of the ledger is filled
        self.usage_of: Callable[[str], UsageRecord | None] = lambda _id: None
        self.on_reported: Callable[[AttemptDir], None] = lambda _directory: None

    # -- what the manager tells us

    def recover(self) -> None:
        """Take up every attempt on disk whose end the ledger does not know. Before anything is heard of the ledger."""
        parent = self._server.host.paths.attempts_dir
        for attempt_id in sorted(folder.name for folder in parent.iterdir() if is_id(folder.name)):
            directory = AttemptDir(parent, attempt_id)
            if attempt_id in self.live or directory.reported():
                continue
            spec = directory.read_spec()
            if spec is None or "ledger_token" not in spec:
                if directory.read_started() is None:
                    directory.remove()  # nothing was started from it
                else:
                    self.unreadable.append(directory)
                continue
            self.adopted_total += 1
            self._begin(attempt_id, spec["ledger_token"], float(spec["isolation_s"]))
        self._inputs.secrets.recover(self.live)

    def ensure(self, allocation: AllocationRecord) -> None:
        """Run what the ledger granted, unless it runs already, or is a gang's member that is over."""
        attempt_id = allocation["allocation_id"]
        job = self._ledger.jobs.get(allocation["owner"]["job_id"]) or NO_JOB
        if is_over(job, attempt_id):
            return
        live = self.live.get(attempt_id)
        front_id = allocation.get("behind")
        if front_id is not None and live is None and not self._stopping:
            self._stand(attempt_id, front_id)
            self.obey_ledger(job)
            return
        self.standing.remove(attempt_id)  # the place is its own by now, or it is on it
        if live is not None and live.directory.exists() and not self._credentials.has(live.directory.credential_file):
            # From before our start: the API may have moved.
            self._credentials.write(live.directory.credential_file, allocation, uid_of(live.directory.read_spec()))
        if live is None and not self._stopping and attempt_id not in self._waiting:
            if reason := reason_to_end(job):
                self._begin_granted(attempt_id, reason)
            elif len(self.live) >= self._server.host.settings.work.max_attempts:
                self._waiting[attempt_id] = self._start_by()
            else:
                self._begin_granted(attempt_id)
        self.obey_ledger(job)

    def _stand(self, attempt_id: str, front_id: str) -> None:
        """Let an attempt wait for the one in front of it, or begin if that is gone already."""
        self.standing.add(attempt_id, front_id, self._server.runtime.boottime())
        if not self._looks_at_standing:
            self._looks_at_standing = True
            self._server.runtime.after(STANDING_S / 2, self._give_back_standing)
        front = self.live.get(front_id)
        if front is not None and front.over:
            self._move_up(front)

    def _is_over(self, attempt: LiveAttempt) -> None:
        if not attempt.over:
            attempt.over = True
            self._move_up(attempt)

    def _move_up(self, front: LiveAttempt) -> None:
        """Begin who stands behind *front*, of which nothing is left; where *front* had to go, its place is another's.

        Of an attempt that the ledger holds no more the place may be another's already: whose, the ledger says.
        """
        attempt_id = self.standing.behind(front.directory.attempt_id)
        if attempt_id is None or not front.had_place or self._stopping:
            return
        if front.stop_reason in ("", "cancelled") and front.directory.attempt_id in self._ledger.allocations:
            self.standing.remove(attempt_id)
            self._begin_granted(attempt_id)
        elif front.stop_reason in ASKED_TO_END:
            self._give_back(attempt_id)

    def _give_back(self, attempt_id: str) -> None:
        """Give back one that stands: it has never begun, and does not begin."""
        if self.standing.remove(attempt_id):
            self._begin_granted(attempt_id, GIVEN_BACK)

    def _give_back_standing(self) -> None:
        """Give back those who have stood for too long, and look again while others stand."""
        if self._left:
            return
        for attempt_id in self.standing.late(self._server.runtime.boottime()):
            self._give_back(attempt_id)
        self._looks_at_standing = bool(self.standing)
        if self._looks_at_standing:
            self._server.runtime.after(STANDING_S / 2, self._give_back_standing)

    def obey_ledger(self, job: JobRecord) -> None:
        """End what the ledger wants ended of *job*: its owner cancelled it, or another is to have its room.

        Of a gang, also what is left of it when one member has not succeeded.
        """
        for attempt in job.get("attempts", ())[-1:]:
            reason = "cancelled" if job["cancel_requested"] else reason_to_end(job)
            for id in ids_of(attempt) if reason else ():
                if reason == "cancelled":
                    self.cancel(id)
                elif reason == PREEMPTED and (preemption := attempt["preemption"]) is not None:
                    self.end_early(id, PREEMPTED, preemption["grace_s"])
                else:
                    self.end_early(id, reason, self._server.host.settings.work.kill_grace_s)

    def end_early(self, attempt_id: str, reason: str, grace_s: float) -> None:
        """End the attempt early: what has not begun does not begin; one told before keeps that grace."""
        stood = self.standing.remove(attempt_id)
        if stood or attempt_id in self._waiting:
            self._waiting.pop(attempt_id, None)
            self._begin_granted(attempt_id, reason)
        elif attempt_id in self.live and not self.live[attempt_id].stop_reason:
            self.live[attempt_id].stop(reason, grace_s)

    def give_back_late(self) -> None:
        """Give back the attempts that have waited here too long for others to end; another host may have room."""
        now, most = self._server.runtime.boottime(), self._server.host.settings.work.max_attempts
        for attempt_id, start_by in list(self._waiting.items()):
            if now < start_by:
                break  # they are in order
            del self._waiting[attempt_id]
            self._begin_granted(attempt_id, late=(start_by, f"one of {most} attempts here (work.max_attempts) to end"))

    def start_delay(self, attempt_id: str) -> dict[str, Any]:
        """What an attempt that has not begun waits for, as text, and for how many more seconds it does."""
        now = self._server.runtime.boottime()
        if attempt_id in self._waiting:
            return {"waits_for": "others here to end (work.max_attempts)", "left_s": self._waiting[attempt_id] - now}
        if attempt_id in self.standing:
            left_s = self.standing.left_s(attempt_id, now)
            return {"waits_for": "the call in front of it, whose place it gets", "left_s": left_s}
        attempt = self.live.get(attempt_id)
        if attempt is None or attempt.state != "starting":
            return {"waits_for": "", "left_s": None}
        begins = attempt.start_by != math.inf
        return {"waits_for": attempt.waits_for, "left_s": attempt.start_by - now if begins else None}

    def cancel(self, attempt_id: str) -> None:
        """End the attempt because the job's owner cancelled it."""
        if attempt_id in self.standing:
            self._give_back(attempt_id)  # it waits again then, which its owner does not want: that ends it
        if attempt_id in self.live:
            self.live[attempt_id].stop("cancelled", self._server.host.settings.work.kill_grace_s)

    def disowned(self, attempt_id: str) -> None:
        """End the attempt because the ledger holds no allocation for it (any more)."""
        if attempt_id in self.live and self.live[attempt_id].state != "reporting":
            self.live[attempt_id].stop("stopped", 0.0)
        self._waiting.pop(attempt_id, None)
        self.standing.remove(attempt_id)

    def renew(self, absence_s: float = 0.0) -> None:
        """Let all shims live as long as the host's lease lets them; or *absence_s*, which the ledger has to allow."""
        for attempt in list(self.live.values()):
            self._renew(attempt, absence_s)

    def _renew(self, attempt: LiveAttempt, absence_s: float = 0.0) -> None:
        if attempt.link is not None and self._renewer.lease.renewed_at is not None:
            attempt.link.renew(self._renewer.lease.deadline(max(attempt.isolation_s, absence_s)))

    def strays(self) -> list[str]:
        """The attempts that live, or may live, without an allocation in the ledger."""
        return [
            attempt_id
            for attempt_id, attempt in self.live.items()
            if attempt_id not in self._ledger.allocations
            and attempt.state != "reporting"
            and attempt.directory.read_started() is not None
        ]

    def stop_all(self, grace_s: float, jobs: Mapping[str, JobRecord] = NO_JOBS) -> int:
        """End everything and start nothing more; gives how many were told. *jobs* have their own grace, if longer."""
        self._stopping = True
        self._waiting.clear()
        self.standing.clear()
        for id, attempt in list(self.live.items()):
            attempt.stop("stopped", max(grace_s, float(jobs.get(job_of(id), NO_JOB).get("grace_s") or 0.0)))
        return len(self.live)

    def leave(self) -> None:
        """Hang up on all shims without ending them."""
        self._stopping = self._left = True
        for attempt in list(self.live.values()):
            if attempt.link is not None:
                attempt.link.hang_up()
        self.functions.leave()

    # -- one attempt

    def _begin_granted(self, attempt_id: str, reason: str = "", late: tuple[float, str] | None = None) -> None:
        """``_begin`` what the ledger has granted; nothing, when it has not any more."""
        allocation = self._ledger.allocations.get(attempt_id)
        if allocation is not None:
            job = self._ledger.jobs.get(allocation["owner"]["job_id"]) or NO_JOB
            self._begin(attempt_id, allocation["token"], isolation_of(allocation, job), reason, late)

    def _begin(
        self,
        attempt_id: str,
        token: list[int],
        isolation_s: float,
        stop_reason: str = "",
        late: tuple[float, str] | None = None,
    ) -> None:
        """Follow it; with a *stop_reason*, see that it does not run. *late*: by when it was to begin, and why not."""
        directory = AttemptDir(self._server.host.paths.attempts_dir, attempt_id)
        attempt = self.live[attempt_id] = LiveAttempt(directory, token, isolation_s)
        attempt.stop_reason = stop_reason
        attempt.had_place = stop_reason == ""
        if late is not None:
            attempt.start_by, attempt.waits_for = late
        self._renewer.hurry()
        self._server.spawn(self._follow(attempt_id))

    async def _follow(self, attempt_id: str) -> None:
        attempt = self.live[attempt_id]
        facts = await self._run(attempt)
        if facts is not None:
            if attempt.started_at and not attempt.start_reported:
                if cluster_version(self._ledger.members) >= BEHIND_SINCE:
                    attempt.start_reported = True
                    facts["started_at"] = attempt.started_at
                else:
                    self._note_started(attempt)  # before its end, and on its way together with it
            self._is_over(attempt)
            await self.checkpoints.take_last(attempt, facts["outcome"])
            attempt.state = "reporting"
            await self._report(attempt, facts)
        del self.live[attempt_id]
        self._inputs.secrets.remove(attempt_id)
        if facts is not None:
            self._credentials.forget(attempt.directory.credential_file)
            # Only now that the ledger knows: what has the mark is not reported again by the next start.
            attempt.directory.mark_reported()
            self.on_reported(attempt.directory)
        while self._waiting and len(self.live) < self._server.host.settings.work.max_attempts:
            attempt_id = next(iter(self._waiting))
            del self._waiting[attempt_id]
            allocation = self._ledger.allocations.get(attempt_id)
            if allocation is not None:
                self.ensure(allocation)

    async def _run(self, attempt: LiveAttempt) -> AttemptEnd | None:
        """See the attempt through; gives the fields of ``end_attempt``, or None when there is nothing to tell."""
        directory = attempt.directory
        tries = 0
        unreachable_s = 0.0
        while True:
            if self._left:
                return None
            # Looked for before its shim is: what is over needs none.
            if (status := directory.read_status()) is not None:
                return await self._ended(attempt, status)
            started = directory.read_started()
            if started is None:
                if attempt.stop_reason in ASKED_TO_END and not directory.exists():
                    return outcome_of_not_begun(directory.attempt_id, attempt.stop_reason)
                tries += 1
                try:
                    if self._is_given_back(attempt):
                        limit_s = self._server.host.settings.work.start_timeout_s
                        return outcome_of_not_started(directory.attempt_id, limit_s, attempt.waits_for)
                    if not await self._start(attempt):
                        return None
                    if isinstance(attempt.link, ServedCall) and (status := await self._served(attempt, attempt.link)):
                        return await self._ended(attempt, status)
                except (DiskFull, WorkerLost, *NO_MORE_TRIES, *NOT_BROUGHT) as error:
                    if tries < START_TRIES and not isinstance(error, NO_MORE_TRIES):
                        await self._server.sleep(min(1.0, LOOK_AGAIN_S * 2**tries))
                        continue
                    failed = "failed" if isinstance(error, DependencyFailed | IsolationNotGiven) else "lost"
                    return {"outcome": failed, "charge": failed == "failed", "error": error.to_dict()}
                continue
            if await self._connected(attempt):
                unreachable_s = 0.0
                continue
            pid = directory.shim_pid()
            if pid is None:
                # Again: it may have written it, and gone, since the look above.
                status = directory.read_status()
                if status is not None:
                    return await self._ended(attempt, status)
                # Before it is told as lost: the ledger then gives what it held to others.
                await end_marked(self._server, self._tag, directory)
                if started.get("boot_id") != self._boot:
                    return outcome_of_lost(directory.attempt_id, "host")
                return outcome_of_lost(directory.attempt_id, None if attempt.alive_here else "agent")
            # It holds its lock but does not take our call: starting, ending, or stopped. Its lease bounds that.
            unreachable_s += LOOK_AGAIN_S
            if unreachable_s > attempt.isolation_s:
                send(pid, signal.SIGKILL)
            await self._server.sleep(LOOK_AGAIN_S)

    async def _connected(self, attempt: LiveAttempt) -> bool:
        """Stay connected to the shim until it hangs up; ``False`` when there was no connection to be had."""
        spec = attempt.directory.read_spec()
        link = ShimLink(self._server.runtime)
        if spec is None or not link.connect(spec):
            return False
        attempt.link = link
        if not await link.known:
            attempt.link = None
            return False
        self._renew(attempt)
        attempt.state = "running"
        attempt.alive_here = True
        attempt.shim_pid = attempt.directory.shim_pid()
        if attempt.stop_reason:
            attempt.stop(attempt.stop_reason, attempt.stop_grace_s)
        self._note_started(attempt)
        self.checkpoints.follow(attempt)
        await link.closed
        attempt.link = None
        return True

    async def _served(self, attempt: LiveAttempt, call: ServedCall) -> WorkStatus | None:
        """Follow an attempt that a worker serves; gives its status, unless that has to be looked for on disk."""
        await call.closed
        attempt.link = None
        return call.status

    async def _start(self, attempt: LiveAttempt) -> bool:
        """Set up the folder and have the shim forked; ``False`` when it should not run at all."""
        attempt_id = attempt.directory.attempt_id
        while not self._stopping and not self._may_begin(attempt):
            attempt.waits_for = self._renewer.missing(attempt.isolation_s) if self.ledger_known else "the ledger"
            await self._renewer.next_change()
            if self._server.runtime.boottime() >= attempt.start_by:
                return True
        spec = attempt.directory.read_spec()
        if spec is not None and spec.get("served_by"):
            attempt.directory.remove()  # it was for a worker that did not take it; whoever runs it needs another spec
        if attempt.stop_reason in ASKED_TO_END and not attempt.directory.exists():
            return True  # it does not begin, which is told where that is looked at
        allocation = self._ledger.allocations.get(attempt_id)
        job = self._ledger.jobs.get(allocation["owner"]["job_id"]) if allocation else None
        if allocation is None or job is None or self._stopping or attempt.stop_reason == "stopped":
            attempt.directory.remove()
            return False
        worker = None
        if not attempt.directory.exists():
            attempt.waits_for = "what it needs from other hosts"
            inputs = await self._inputs.bring(job, attempt_id)
            mps = await self.apart.mps_of(job, allocation)
            if attempt_id not in self._ledger.allocations or self._stopping:
                return False  # taken back meanwhile
            # Bringing them has a limit of its own, and may rightly take long: the time to start begins after it.
            attempt.start_by = self._start_by()
            await self.apart.until_alone(attempt, self._ledger)
            if self._server.runtime.boottime() >= attempt.start_by or attempt_id not in self._ledger.allocations:
                return True  # looked at again: it is given back, or was taken back
            attempt.waits_for = "its process to be forked"
            worker = None if self.apart.is_wanted_full(job) else await self.functions.worker_for(job, allocation)
            served_by = None if worker is None else worker.served_by
            spec = attempt_spec(self._server, self._ledger, self._tag, job, allocation, inputs, served_by, mps)
            if worker is None:
                await self.apart.keep(spec, job, mps=bool(mps))
            attempt.directory.create(spec, durably=worker is None)
            self._credentials.write(attempt.directory.credential_file, allocation, uid_of(spec))
        if not self._renewer.may_start(attempt.isolation_s) or attempt.stop_reason in ASKED_TO_END:
            if worker is not None:
                self.functions.give_back(worker)
                attempt.directory.remove()
            return True  # what it needs took its time
        deadline = self._renewer.lease.deadline(attempt.isolation_s)
        if worker is not None:
            attempt.link = await worker.serve(attempt_id, deadline)
            if attempt.link is None:
                return True  # looked at again: it has begun after all, or another process is to run it
            attempt.state, attempt.shim_pid, attempt.started_at = "running", worker.shim_pid, time.time()
            self.functions.served_total += 1
            if attempt.stop_reason:
                attempt.stop(attempt.stop_reason, attempt.stop_grace_s)
        else:
            attempt.shim_pid = await self._zygote.fork(str(attempt.directory.path), deadline)
        self.started_total += not attempt.alive_here
        attempt.alive_here = True
        if worker is None:
            self._note_started(attempt)
        else:
            self._server.runtime.after(TOLD_LATER_S, lambda: self._note_started(attempt))
        return True

    def _start_by(self) -> float:
        limit_s: float = self._server.host.settings.work.start_timeout_s
        return self._server.runtime.boottime() + limit_s

    def _is_given_back(self, attempt: LiveAttempt) -> bool:
        """Whether the attempt has not begun in time and never will here: its folder is marked as taken.

        Only what the ledger still has given to us: what it has not ends in another way.
        """
        if attempt.start_by == math.inf and self.ledger_known:
            attempt.start_by = self._start_by()
        late = self._server.runtime.boottime() >= attempt.start_by
        if not late or attempt.directory.attempt_id not in self._ledger.allocations or attempt.stop_reason:
            return False
        if not attempt.directory.exists():
            return True
        lock = attempt.directory.take()
        if lock is None:
            return False  # it has just begun
        os.close(lock)
        return True

    def _may_begin(self, attempt: LiveAttempt) -> bool:
        """Whether an attempt that has not begun can be started, or dropped, now."""
        if not self.ledger_known:
            return False  # from before our start: whether it is still wanted, the ledger says
        wanted = attempt.directory.attempt_id in self._ledger.allocations
        return self._renewer.may_start(attempt.isolation_s) or not wanted

    def _note_started(self, attempt: LiveAttempt) -> None:
        if not attempt.start_reported and not self._left:
            attempt.start_reported = True
            self._server.spawn(self._tell_started(attempt))

    async def _tell_started(self, attempt: LiveAttempt) -> None:
        command = StartAttempt(attempt.directory.attempt_id, attempt.token)
        if attempt.started_at:
            command = replace(command, at=attempt.started_at)
        try:
            answer: StartAnswer = await self._ledger.propose(command)
        except LedgerRefused as refused:
            if attempt.state != "reporting":
                self._server.log.info("attempt %s is not ours to run: %s", attempt.directory.attempt_id, refused)
                attempt.stop("stopped", 0.0)  # at once, or as soon as it can be reached
            return
        if answer.get("cancel_requested"):
            self.cancel(attempt.directory.attempt_id)
        elif (preemption := answer.get("preemption")) is not None:
            self.end_early(attempt.directory.attempt_id, PREEMPTED, preemption["grace_s"])
        for wish, reason in (("ending", GANG), ("superseded", SUPERSEDED)):
            if answer.get(wish) is not None:
                self.end_early(attempt.directory.attempt_id, reason, self._server.host.settings.work.kill_grace_s)

    async def _ended(self, attempt: LiveAttempt, status: WorkStatus) -> AttemptEnd:
        directory = attempt.directory
        self._is_over(attempt)  # before the disk is waited for: its place is free
        if "unsynced_in" in status:
            if status["unsynced_in"] != self._boot:
                return outcome_of_lost(directory.attempt_id, "host")
            try:
                await self._results.run((directory.path, directory.result.name))
            except (FileNotFoundError, NotARegularFile):
                pass  # it left none, which is judged below
            except OSError as error:
                self._server.log.warning("the result of %s cannot be kept: %s", directory.attempt_id, error)
                return outcome_of_unkept(directory.attempt_id, str(error))
        return end_of(directory, status)

    async def _report(self, attempt: LiveAttempt, facts: AttemptEnd) -> None:
        number = number_of(attempt.directory.attempt_id) or 1
        backoff_s = self._server.host.settings.scheduling.retry_backoff_s
        delay_s = retry_delay_s(backoff_s, number, attempt.directory.attempt_id)
        self.ended_total[facts["outcome"]] = self.ended_total.get(facts["outcome"], 0) + 1
        if usage := self.usage_of(attempt.directory.attempt_id):
            facts["usage"] = usage
        command = EndAttempt(attempt.directory.attempt_id, attempt.token, **facts)
        if self.standing and attempt.had_place:
            await self._gathered.together()
        # Who never held a place waits for nothing before it may have one.
        answer: EndAnswer | None = await self._commit(command, delay_s if attempt.had_place else None)
        if answer is not None and answer["already"] and facts["outcome"] == "succeeded":
            await self._tell_late(attempt, facts)

    async def _tell_late(self, attempt: LiveAttempt, facts: AttemptEnd) -> None:
        """Tell a success late: the ledger had ended the attempt as lost before it could be told."""
        attempt_id = attempt.directory.attempt_id
        known: dict[str, Any] = {name: fact for name, fact in facts.items() if name in (*END_FACTS, "results")}
        late = TakeSuccess(attempt_id, attempt.token, at=time.time(), **known)
        answer: LateSuccessAnswer | None = await self._commit(late)
        if answer is not None:
            taken = "of no attempt yet" if answer["taken"] is None else f"that of attempt {answer['taken']}"
            self._server.log.info("%s had succeeded here; the job's outcome is %s", attempt_id, taken)

    async def _commit(self, command: EndAttempt | TakeSuccess, retry_in_s: float | None = None) -> Any:
        """Commit a command, however long that takes; gives the answer, or ``None`` when it was refused for good."""
        while True:
            command = replace(command, at=time.time())
            if isinstance(command, EndAttempt) and retry_in_s is not None:
                command = replace(command, retry_at=command.at + retry_in_s)
            try:
                return await self._ledger.propose(command)
            except (LedgerRefused, HostsTooOld) as refused:
                self._server.log.info("the end of %s is no news: %s", command.attempt_id, refused)
                return None
            except ActorGridError as error:
                self._server.log.warning("the end of %s is not recorded yet: %s", command.attempt_id, error)
            await self._server.sleep(COMMIT_AGAIN_S)
