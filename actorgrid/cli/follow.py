"""Follows a job to its end from this terminal: its output as it comes, through restarts of the agent.

The agent may die and come back while the job runs on under its shim; so every reader remembers how far
it got and connects anew, for at most ``PATIENCE_S`` without an answer.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, BinaryIO

from actorgrid.client.http import AdminHttp, segment
from actorgrid.client.output_cursor import OutputCursor
from actorgrid.errors import ActorGridError, CallTimeout, HostError, HostUnreachable, NotARegularFile, NotFound
from actorgrid.job_outcome import FINAL_STATES

from .ranks import Labelled, Ranks

PATIENCE_S = 60.0
PAUSE_S = 0.5
WAIT_S = 20.0
PIECE_BYTES = 64 * 1024
_BROKEN = (http.client.HTTPException, ConnectionError, TimeoutError, ValueError, AttributeError)


class OutputClosed(ActorGridError):
    """Raised when our own stdout or stderr was closed by its reader."""

    exit_code = 128 + 13


class JobFollower:
    """Threads that carry a job's output and wait for its end; made, started, waited for, closed.

    *connect* gives a new door each time. *outputs* maps ``stdout`` and ``stderr`` to where their bytes go (a stream
    that is not named is not read); of a gang it is that of *rank*, or with *ranks* of each as these name it.
    *notice* is told what a person should know. Output begins with that of *attempt* (the first, unless given) and
    goes on through later ones, or with *only* ends with it. *before_output* is called before each piece, to clear
    what else is on the terminal. *choice*: the part of the output that is asked for (``since_s``, ``tail``, ``grep``).
    """

    def __init__(
        self,
        job_id: str,
        connect: Callable[[], AdminHttp],
        outputs: dict[str, BinaryIO],
        notice: Callable[[str], None],
        attempt: int | None = None,
        only: bool = False,
        before_output: Callable[[], None] = lambda: None,
        rank: int = 0,
        ranks: Ranks | None = None,
        choice: Mapping[str, Any] | None = None,
    ) -> None:
        self.job_id = job_id
        self._choice = choice or {}
        self.job: dict[str, Any] | None = None
        self.error: ActorGridError | None = None
        self.finished = threading.Event()
        self._attempt = attempt
        self._only = only
        self._before_output = before_output
        self._closed = threading.Event()
        self._connect = connect
        self._notice = notice
        self._lock = threading.Lock()
        self._doors: set[AdminHttp] = set()
        self._lost_at: float | None = None
        self._threads = [
            threading.Thread(target=self._carry, args=(stream, target, of), name=f"follow-{stream}-{of}", daemon=True)
            for (of, stream), target in self._wanted(outputs, rank, ranks).items()
        ]
        self._ranks = ranks
        self._waiter = threading.Thread(target=self._wait, name="follow-end", daemon=True)

    @staticmethod
    def _wanted(
        outputs: dict[str, BinaryIO], rank: int, ranks: Ranks | None
    ) -> Mapping[tuple[int, str], BinaryIO | Labelled]:
        if ranks is not None:
            return ranks.labelled
        return {(rank, stream): target for stream, target in outputs.items()}

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()
        self._waiter.start()  # last: it joins the others

    def result(self) -> dict[str, Any]:
        """The ended job. Call when ``finished`` is set; raises what kept us from knowing."""
        self._waiter.join()
        if self.error is not None:
            raise self.error
        assert self.job is not None, "finished without a job or an error"
        return self.job

    def close(self) -> None:
        """Stop reading; what runs is not touched."""
        self._closed.set()
        with self._lock:
            doors = list(self._doors)
        for door in doors:
            door.close()

    @property
    def silent(self) -> bool:
        """Whether the agent is not answering just now."""
        return self._lost_at is not None

    # -- threads

    def _wait(self) -> None:
        try:
            self.job = self._persist(self._await_end)
        except ActorGridError as error:
            self._fail(error)
        finally:
            for thread in self._threads:
                thread.join()
            if self._ranks is not None:
                self._ranks.end()
            self.finished.set()

    def _await_end(self, door: AdminHttp) -> dict[str, Any]:
        while True:
            job = self._look(door, wait_s=WAIT_S)
            if job["state"] in FINAL_STATES:
                return job

    def _look(self, door: AdminHttp, wait_s: float | None = None) -> dict[str, Any]:
        path = f"/api/jobs/{segment(self.job_id)}"
        job: dict[str, Any] = door.get(path, wait_s=wait_s, timeout_s=(wait_s or 0.0) + 15)
        self._answered()
        return job

    def _carry(self, stream: str, target: BinaryIO | Labelled, rank: int) -> None:
        number, unreadable = self._attempt or 1, 0
        at = OutputCursor(self._choice)

        def pieces(door: AdminHttp) -> None:
            nonlocal unreadable
            if number == unreadable:  # it was said already, and does not become a file again
                return
            query = {"stream": stream, "follow": True, "attempt": number, **at.query()}
            if rank:
                query["rank"] = rank
            try:
                with door.stream(f"/api/jobs/{segment(self.job_id)}/logs", **query) as response:
                    self._answered()
                    before = at.answered(response.headers.get("X-Offset"))
                    while piece := _piece(response):
                        new = piece[before:]
                        before -= len(piece) - len(new)
                        at.delivered += len(new)
                        self._before_output()
                        target.write(new)
                        target.flush()
            except NotARegularFile as error:
                unreadable = number
                self._notice(f"no {stream} of attempt {number}: {error.message}: {error.found}")
            except NotFound as error:
                self._notice(f"no {stream} of attempt {number}: {error.message}")

        def read(door: AdminHttp) -> None:
            nonlocal number
            while True:
                pieces(door)
                # A stream also ends when the agent stops in order: only the job says whether that was all.
                job = self._look(door)
                ended = {attempt["number"] for attempt in job["attempts"] if attempt.get("ended_at")}
                if number in ended and self._only:
                    return
                if number in ended and (number < len(job["attempts"]) or job["state"] not in FINAL_STATES):
                    number += 1
                    at.next_attempt()
                elif job["state"] in FINAL_STATES:
                    return
                else:
                    self._closed.wait(PAUSE_S)

        try:
            self._persist(read)
        except ActorGridError as error:
            self._notice(f"no more {stream}: {error.message}")
        except BrokenPipeError:
            hint = f"the job runs on; to stop it: actorgrid cancel {self.job_id}"
            self._fail(OutputClosed("whoever read the output has gone", hint=hint))
        except OSError as error:  # of the target: the door's own come as ActorGridError
            self._fail(ActorGridError(f"cannot write {stream}: {error.strerror}", hint=f"actorgrid logs {self.job_id}"))

    def _persist(self, work: Callable[[AdminHttp], Any]) -> Any:
        """Do *work* on a door; when the door breaks, on a new one, until nobody answered for too long."""
        while not self._closed.is_set():
            door = None
            try:
                door = self._connect()
                with self._lock:
                    self._doors.add(door)
                return work(door)
            except (HostUnreachable, HostError, CallTimeout) as error:
                if self._closed.is_set():
                    return None
                if self._silent_s() > PATIENCE_S:
                    raise HostUnreachable(
                        f"nobody answered for {PATIENCE_S:.0f} s; the job is kept and may still run",
                        asked=self.job_id,
                        found=error.message,
                        hint=f"once the agent is back: actorgrid logs -f {self.job_id}",
                    ) from error
                self._closed.wait(PAUSE_S)
            finally:
                if door is not None:
                    with self._lock:
                        self._doors.discard(door)
                    door.close()
        return None

    def _silent_s(self) -> float:
        with self._lock:
            first = self._lost_at is None
            self._lost_at = monotonic() if self._lost_at is None else self._lost_at
            silent_s = monotonic() - self._lost_at
        if first:
            self._notice("the agent does not answer; the job is kept. Waiting for the agent to come back")
        return silent_s

    def _answered(self) -> None:
        with self._lock:
            back, self._lost_at = self._lost_at is not None, None
        if back:
            self._notice("the agent is back")

    def _fail(self, error: ActorGridError) -> None:
        self.error = self.error or error
        self.close()


def _piece(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(PIECE_BYTES)
    except _BROKEN as error:  # a socket shut by close() shows as ValueError or AttributeError
        raise HostUnreachable("the stream broke off") from error
