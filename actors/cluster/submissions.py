"""Jobs on their way into the ledger: what arrives while others are being committed goes with the next entry.

A commit costs a sync of several disks and a message to every host, whatever it holds. So clients that submit one by one
get, together, what one that submits in batches gets. Each request is still accepted as a whole or not at all: where the
ledger refuses several together, each is proposed again by itself, and only who is at fault hears of it. (Job ids make
that safe: one that was accepted already is answered as a duplicate.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from actorgrid.actors.ledger.answers import SubmitAnswer, SubmittedJob
from actorgrid.actors.ledger.commands import SubmitJobs
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.errors import ActorGridError, CallTimeout, MailboxFull, NoQuorum, Overloaded, StorageError
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server

from ..ledger.snapshot import pack

TOGETHER_JOBS = 1_000
TOGETHER_BYTES = 256 * 1024
"""As they are packed; a message between hosts holds twice that."""
UNDER_WAY_MAX = 2
"""Entries proposed at once: while one is on its way to the disks, the next gathers."""
WAITING_MAX = 10_000
NOBODYS_FAULT = (CallTimeout, MailboxFull, NoQuorum, StorageError)
"""What is no refusal of a job: proposing each again would end the same way."""


@dataclass(slots=True, eq=False)
class _Request:
    jobs: Sequence[JobRecord]
    bytes: int
    answer: Waiter


class Submissions:
    """Commits ``submit_jobs`` by *propose*. Bound: 10,000 requests wait, then Overloaded."""

    def __init__(self, server: Server, propose: Callable[[SubmitJobs], Awaitable[SubmitAnswer]]) -> None:
        self._server = server
        self._propose = propose
        self._waiting: deque[_Request] = deque()
        self._under_way = 0

    async def accept(self, jobs: Sequence[JobRecord]) -> list[SubmittedJob]:
        """Have *jobs* committed, all or none; gives the answer for each. Raises what the ledger refuses with."""
        if len(self._waiting) >= WAITING_MAX:
            raise Overloaded(
                "too many submissions wait for the ledger", found=f"{WAITING_MAX}", hint="try again in a moment"
            )
        request = _Request(jobs, len(pack(list(jobs))), Waiter())
        self._waiting.append(request)
        self._go_on()
        answers: list[SubmittedJob] = await request.answer
        return answers

    def _go_on(self) -> None:
        while self._waiting and self._under_way < UNDER_WAY_MAX:
            self._under_way += 1
            self._server.spawn(self._commit(self._together()))

    def _together(self) -> list[_Request]:
        """The requests to commit next together, in their order: at least one."""
        found = [self._waiting.popleft()]
        jobs, size = len(found[0].jobs), found[0].bytes
        while self._waiting:
            request = self._waiting[0]
            jobs, size = jobs + len(request.jobs), size + request.bytes
            if jobs > TOGETHER_JOBS or size > TOGETHER_BYTES:
                break
            found.append(self._waiting.popleft())
        return found

    async def _commit(self, requests: list[_Request]) -> None:
        try:
            await self._commit_all(requests)
        finally:
            self._under_way -= 1
            self._go_on()

    async def _commit_all(self, requests: list[_Request]) -> None:
        jobs = [job for request in requests for job in request.jobs]
        try:
            answers = iter((await self._propose(SubmitJobs(jobs)))["jobs"])
        except ActorGridError as error:
            if len(requests) == 1 or isinstance(error, NOBODYS_FAULT):
                for request in requests:
                    request.answer.fail(error)
                return
            for request in requests:
                await self._commit_all([request])
            return
        for request in requests:
            request.answer.set([next(answers) for _ in request.jobs])
