"""Durable submits: functions as jobs. Batched on the way in, one event stream for all of them on the way out.

Four kinds of thread for any number of jobs: one sends batches, one follows the host's events, up to four fetch results
(at once, because a host keeps only its latest results; of those that ended together, together).
"""

from __future__ import annotations

import base64
import json
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    ClientClosed,
    HostUnreachable,
    MalformedBody,
    NotFound,
    Overloaded,
    TaskCancelled,
    TaskFailed,
    error_from_dict,
)
from actorgrid.job_outcome import FINAL_STATES
from actorgrid.transports.remote_exceptions import raised_by_task
from actorgrid.transports.task_frames import decode_result

from .environment import Environment
from .futures import JobFuture
from .http import AdminHttp, segment
from .nested import never_starts
from .options import TaskOptions
from .pickling import PYTHON, job_payload, loads_value
from .working_dir import WorkingDir

GATHER_S = 0.003
MAX_BATCH = 1000
MAX_BATCH_BYTES = 16 * 2**20
MAX_UNSENT = 10_000
MAX_FETCHERS = 4
FULL_PATIENCE_S = 60.0
SWEEP_JOBS = 50
FETCHED_MAX = 64
"""Results that are asked for together; a host gives at most so many."""


class DurableJobs:
    """The function jobs of one client, from submit to result."""

    def __init__(
        self, http: AdminHttp, working_dir: WorkingDir | None = None, environment: Environment | None = None
    ) -> None:
        self._http = http
        self._environment = environment
        self._working_dir = working_dir
        self._lock = threading.Lock()
        self._unsent: queue.Queue[tuple[dict[str, Any], JobFuture[Any]] | None] = queue.Queue(MAX_UNSENT)
        self._outstanding: dict[str, JobFuture[Any]] = {}
        self._ended: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._listening = threading.Event()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._last_index = 0
        self._gives_together = True

    def submit(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: TaskOptions
    ) -> JobFuture[Any]:
        """Queue one job; it goes out with others within a few milliseconds. Waits while 10,000 are unsent."""
        request = self.request(fn, args, kwargs, options)
        job_id, name = request["task_id"], request["name"]
        future: JobFuture[Any] = JobFuture(job_id, name, self._cancel, self._never_starts)
        with self._lock:
            if self._stop.is_set():
                raise ClientClosed("the client is closed", hint="make another with actorgrid.connect()")
            if not self._threads:
                self._start("actorgrid-events", self._follow)
                self._start("actorgrid-batches", self._send)
            self._outstanding[job_id] = future
        self._unsent.put((request, future))
        return future

    def request(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: TaskOptions
    ) -> dict[str, Any]:
        """The body of a request for the job; what it runs in is sent before. Raises UnpicklableFunction."""
        # With a directory of its own a job runs in what was sent, on this machine, too: it may run again much later.
        sent = self._working_dir
        environment = options.environment or self._environment
        payload, inputs = job_payload(fn, args, kwargs, directory=sent is None, installed=environment is None)
        name = options.name or str(getattr(fn, "__name__", type(fn).__name__))
        request = options.job_request(inputs, kind="function", payload=payload, python=PYTHON, name=name)
        if sent is not None:
            request["working_dir"] = sent.send_to_door(self._http)
        if environment is not None:
            request["environment"] = environment.send_to_door(self._http)
        return request

    def attach(self, job_id: str, name: str = "") -> JobFuture[Any]:
        """A future for a job that exists already, of this client or another."""
        future: JobFuture[Any] = JobFuture(job_id, name, self._cancel, self._never_starts)
        future._accepted.set()
        with self._lock:
            if not self._threads:
                self._start("actorgrid-events", self._follow)
                self._start("actorgrid-batches", self._send)
            known = self._outstanding.setdefault(job_id, future)
        self._listening.wait(5.0)
        if known is future:
            self._look_at(job_id)
        return known

    def finish(self) -> None:
        """Close, with the connections, when every future has its end: the client is gone, they may be waited for."""
        while True:
            with self._lock:
                left = list(self._outstanding.values())
            if not left or self._stop.is_set():
                break
            wait(left)
        self.close()
        self._http.close()

    def close(self, wait_s: float = 10.0) -> None:
        """Send what is unsent (for up to *wait_s*), then let go. The jobs go on; their futures here are cancelled."""
        if self._stop.is_set():
            return
        self._stop.set()
        with self._lock:
            threads = list(self._threads)
        if threads:
            self._unsent.put(None)
            for thread in threads:
                if thread.name == "actorgrid-batches":
                    thread.join(wait_s)
            for _ in range(MAX_FETCHERS):
                self._ended.put(None)
        with self._lock:
            left = list(self._outstanding.values())
            self._outstanding.clear()
        for future in left:
            future._cancelled()

    # -- sending

    def _start(self, name: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _send(self) -> None:
        self._listening.wait(5.0)  # an end that happens before we listen is found by the sweep, but later
        carried: tuple[dict[str, Any], JobFuture[Any]] | None = None
        while True:
            first = carried or self._unsent.get()
            carried = None
            if first is None:
                return
            batch, size = [first], len(first[0]["payload"])
            until = time.monotonic() + GATHER_S
            while len(batch) < MAX_BATCH:
                try:
                    item = self._unsent.get(timeout=max(0.0, until - time.monotonic()))
                except queue.Empty:
                    break
                if item is None:
                    self._unsent.put(None)
                    break
                if size + len(item[0]["payload"]) > MAX_BATCH_BYTES:
                    carried = item
                    break
                batch.append(item)
                size += len(item[0]["payload"])
            self._post(batch)

    def _post(self, batch: list[tuple[dict[str, Any], JobFuture[Any]]]) -> None:
        started = time.monotonic()
        while True:
            try:
                self._http.post("/api/jobs/batch", {"jobs": [request for request, _ in batch]}, repeat=True)
            except Overloaded as error:
                if time.monotonic() - started < FULL_PATIENCE_S and not self._stop.wait(0.25):
                    continue
                self._refused(batch, error)
            except ActorGridError as error:
                if len(batch) > 1 and not isinstance(error, HostUnreachable):
                    middle = len(batch) // 2  # all or none: find the one that is at fault
                    self._post(batch[:middle])
                    self._post(batch[middle:])
                else:
                    self._refused(batch, error)
            else:
                for _, future in batch:
                    future._accepted.set()
            return

    def _refused(self, batch: list[tuple[dict[str, Any], JobFuture[Any]]], error: ActorGridError) -> None:
        for _, future in batch:
            with self._lock:
                mine = self._outstanding.pop(future.job_id, None) is not None
            if mine:
                future.refuse(error_from_dict(error.to_dict()))

    def _cancel(self, job_id: str) -> bool:
        try:
            job = self._http.post(f"/api/jobs/{segment(job_id)}/cancel", repeat=True)
        except NotFound:
            return False
        except HostUnreachable:
            return False
        if job["state"] == "cancelled":
            self._end(job_id, "cancelled")
        return bool(job["state"] == "cancelled" or job.get("cancel_requested"))

    def _never_starts(self, job_id: str) -> ActorGridError | None:
        return never_starts(self._http, job_id)

    # -- following

    def _follow(self) -> None:
        pause_s = 0.1
        while not self._stop.is_set():
            try:
                start = {"from": self._last_index + 1} if self._last_index else {}
                with self._http.event_stream("/api/events", **start) as events:
                    self._listening.set()
                    self._sweep()
                    pause_s = 0.1
                    for event in events:
                        if event.event == "end" or self._stop.is_set():
                            break
                        self._hear(event.data)
            except ActorGridError:
                self._stop.wait(pause_s)  # restarting; futures wait with us
                pause_s = min(pause_s * 2, 2.0)
                if not self._listening.is_set() and pause_s > 1.0:
                    self._listening.set()  # nobody there: let the sender find out what to say

    def _hear(self, data: str) -> None:
        try:
            event = json.loads(data)
        except ValueError as error:
            raise MalformedBody("an event is not JSON", found=data[:80]) from error
        self._last_index = max(self._last_index, int(event.get("index", 0)))
        for change in event.get("changes", ()):
            if (
                change.get("kind") == "job"
                and change.get("state") in FINAL_STATES
                and change["id"] in self._outstanding
            ):
                self._end(change["id"], change["state"])

    def _sweep(self) -> None:
        """Look at the oldest outstanding jobs: an event may have gone by before we listened."""
        with self._lock:
            oldest = [job_id for job_id, future in self._outstanding.items() if future._accepted.is_set()][:SWEEP_JOBS]
        for job_id in oldest:
            self._look_at(job_id)

    def _look_at(self, job_id: str) -> None:
        try:
            job = self._http.get(f"/api/jobs/{segment(job_id)}")
        except NotFound as error:
            with self._lock:
                future = self._outstanding.pop(job_id, None)
            if future is not None:
                future.refuse(error)
            return
        if job["state"] in FINAL_STATES:
            self._end(job_id, job["state"])

    # -- results

    def _end(self, job_id: str, state: str) -> None:
        self._ended.put((job_id, state))
        with self._lock:
            running = sum(thread.name == "actorgrid-fetch" for thread in self._threads)
            if running < MAX_FETCHERS and (running == 0 or self._ended.qsize() > running):
                self._start("actorgrid-fetch", self._fetch)

    def _fetch(self) -> None:
        while (ended := self._ended.get()) is not None:
            wanted: dict[str, JobFuture[Any]] = {}
            for job_id, state in self._with_those_behind(ended):
                with self._lock:
                    future = self._outstanding.pop(job_id, None)
                if future is not None and state == "cancelled":
                    future._cancelled()
                elif future is not None:
                    wanted[job_id] = future
            found = self._results_of(list(wanted)) if len(wanted) > 1 else {}
            for job_id, future in wanted.items():
                try:
                    data = found.get(job_id) or self._http.get(f"/api/jobs/{segment(job_id)}/result")
                except ActorGridError as error:
                    future.set_exception(error)
                else:
                    future.settle(value_of_result if isinstance(data, bytes) else _not_bytes, data, _fails(data))

    def _with_those_behind(self, first: tuple[str, str]) -> list[tuple[str, str]]:
        """The job, and those that have ended by now as well, as many as one request may ask for."""
        ended = [first]
        while len(ended) < FETCHED_MAX:
            try:
                more = self._ended.get_nowait()
            except queue.Empty:
                break
            if more is None:
                self._ended.put(None)  # it is for us as well, when these are told
                break
            ended.append(more)
        return ended

    def _results_of(self, job_ids: list[str]) -> dict[str, bytes]:
        """The results that the host gives together; the others are to be asked for one by one, as are errors."""
        if not self._gives_together:
            return {}
        try:
            answer = self._http.post("/api/jobs/results", {"job_ids": job_ids}, repeat=True)
            told = {each["job_id"]: each["result"] for each in answer["results"] if each["result"] is not None}
            return {job_id: base64.b64decode(text) for job_id, text in told.items()}
        except (BadRequest, NotFound):
            self._gives_together = False  # a host of an earlier version
            return {}
        except ActorGridError:
            return {}
        except (KeyError, TypeError, ValueError):
            return {}


def value_of_result(data: bytes) -> Any:
    """The value in a result file. Raises the error it holds, with the original exception as cause."""
    result = decode_result(data)
    if result.ok and result.value is not None:
        return loads_value(result.value)
    raise raised_by_task(result.error or TaskFailed("the job failed"), result.exception)


def _fails(data: object) -> bool | None:
    """Whether a result file holds no value, as ``LazyFuture.settle`` takes it: its bytes are not the value alone."""
    try:
        return None if isinstance(data, bytes) and decode_result(data).ok else True
    except MalformedBody:
        return True


def failure_of(job: dict[str, Any]) -> ActorGridError:
    """The named error of a job that did not succeed."""
    if job.get("error"):
        return error_from_dict(job["error"])
    for attempt in reversed(job.get("attempts") or []):
        if attempt.get("error"):
            return error_from_dict(attempt["error"])
    if job["state"] == "cancelled":
        return TaskCancelled(f"job {job['job_id']} was cancelled")
    last = (job.get("attempts") or [{}])[-1]
    found = f"exit status {last.get('exit_code')}" if last.get("signal") is None else f"signal {last['signal']}"
    return TaskFailed(f"job {job['job_id']} {job['state']}", found=found, hint=f"actorgrid logs {job['job_id']}")


def _not_bytes(data: Any) -> Any:
    raise BadRequest("the result is not one of a function job", found=type(data).__name__)
