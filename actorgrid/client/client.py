"""The synchronous client of a host: tasks, jobs, shared state, and what the cluster looks like.

Importing this module costs little: what tasks need (cloudpickle, threads) is loaded at the first task.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

from actorgrid.balancing.targets import balancing_policy
from actorgrid.errors import BadRequest, ClientClosed, HostUnreachable, ResultGone, WrongState
from actorgrid.job_outcome import FINAL_STATES, deciding_attempt

from .cluster_view import ClusterViewClient
from .find import fingerprint, locate
from .forks import renew_in_children
from .function_calls import FunctionCalls
from .graph_calls import GraphCalls
from .http import AdminHttp, segment
from .interpreters import refuse_subinterpreters
from .job_calls import JobCalls
from .nested import LOOK_S, NESTED_WAIT_S, inside_work, never_starts
from .options import TaskOptions
from .schedules import ScheduleCalls
from .services import ServiceCalls
from .state import SharedState
from .task import pop_default, push_default
from .typed_work import WorkCalls

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path
    from types import TracebackType

    from actorgrid.objects.refs import Ref

    from .actor_handles import ActorHandle
    from .durable import DurableJobs
    from .environment import Environment, Packages
    from .futures import JobFuture, LazyFuture
    from .job_files import JobFile
    from .light_shards import LightShards, ProcessRef
    from .locks import HeldLocks, Lock, LockTerms, OnLost
    from .session import Session
    from .stream_items import StreamItems
    from .working_dir import WorkingDir

T = TypeVar("T")
WAIT_STEP_S = 30.0


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command. ``exit_code`` is ``None`` when a signal ended it, or when it never ran."""

    job_id: str
    state: str
    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    job: dict[str, Any] = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether the command succeeded."""
        return self.state == "succeeded"


class Client(ClusterViewClient, FunctionCalls, GraphCalls, JobCalls, ScheduleCalls, ServiceCalls, WorkCalls):
    """A client of a host, or of its cluster, for one user. Safe to use from many threads.

    A forked child goes on with it, with a session of its own; futures, workers and locks of before stay the parent's.

    A ``concurrent.futures.Executor``. ``with client:`` makes it the one that ``@task`` functions use, waits at its
    end for the session tasks that are unfinished, and closes it; left by an exception, it cancels them, as closing
    does. Jobs go on. One that is dropped closes when what it has submitted has ended.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout_s: float = 30.0,
        keep_alive_s: float = 1.0,
        stream_output: bool = True,
        insecure: bool = False,
        ca_fingerprint: str | None = None,
        nested_wait_s: float | None = NESTED_WAIT_S,
        balancing: str | None = None,
        working_dir: str | os.PathLike[str] | None = None,
        exclude: Sequence[str] = (),
        env: Environment | Packages | None = None,
        python: str | None = None,
        relayed: bool | None = None,
    ) -> None:
        """*keep_alive_s*: how long an idle worker is kept leased. *stream_output*: show what session tasks print.

        *nested_wait_s*: how long a session task that is submitted from within a job or task waits for its first worker
        before it fails with NoRoomForNestedTask (``None``: whenever); outside of work there is no such bound.

        *balancing*: which worker gets a session task that does not say, by name (docs/load_balancing.md); ``None``: as
        the pool's setting on the host is.

        *working_dir*: a directory that work finds as its own: session tasks on this machine go to the directory itself,
        all other work runs in what was sent of it at the first need, without what matches *exclude*
        (docs/what_work_gets.md).

        *env*, *python*: the Python environment of all work that does not say another (docs/environments.md). Raises
        BadRequest, NotSupported in a subinterpreter.

        *relayed*: whether session tasks go to their workers through the host's door, as from another machine, or by
        sockets on this machine; ``None``: whichever there is (docs/clients.md).
        """
        refuse_subinterpreters()
        if balancing is not None:
            balancing_policy(balancing)
        self.http = AdminHttp(url, token, timeout_s=timeout_s, insecure=insecure, ca_fingerprint=ca_fingerprint)
        self.state = SharedState(self.http)
        self._session_options: dict[str, Any] = {
            "keep_alive_s": keep_alive_s,
            "stream_output": stream_output,
            "nested_wait_s": nested_wait_s,
            "balancing": balancing,
            "relayed": relayed,
        }
        self._working_dir: WorkingDir | None = None
        if working_dir is not None:
            from .working_dir import WorkingDir

            self._working_dir = WorkingDir(working_dir, exclude)
        elif exclude:
            raise BadRequest("exclude is about a working directory", hint="say working_dir='.' as well")
        self._environment: Environment | None = None
        if env is not None or python is not None:
            from .environment import environment_from

            self._environment = environment_from(env, python)
        self._closed = False
        self._shut = False  # takes nothing more, and closes when what it has is done
        self._of_parents: list[object] = []
        self._begin()
        _open_clients.add(self)
        renew_in_children(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._durable: DurableJobs | None = None
        self._holds: HeldLocks | None = None

    def after_fork(self) -> None:
        """Go on in a forked child with a session of its own."""
        # Kept: what ends with them would be told to workers and hosts that still serve the parent.
        self._of_parents += [self._session, self._durable, self._holds]
        if self._working_dir is not None:
            self._working_dir.after_fork()
        if self._environment is not None:
            self._environment.after_fork()
        self._begin()

    @property
    def url(self) -> str:
        """The URL of the host."""
        return self.http.url

    # -- work

    def submit_with(
        self,
        options: TaskOptions,
        fn: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        stream: StreamItems | None = None,
    ) -> LazyFuture[T]:
        """``submit`` with ready-made options; of a *stream* its future, whose value is how many values it had."""
        if options.durable:
            if stream is not None:
                raise BadRequest("a job has no stream", asked="durable=True", hint="leave it out, or give a list")
            return self._jobs().submit(fn, args, dict(kwargs), options)
        if options.deadline is not None:
            raise BadRequest("a session task has no deadline", asked="deadline=", hint="say durable=True as well")
        if options.min_isolation:
            raise BadRequest(
                "workers of sessions are there before their tasks, and kept apart as the host keeps them",
                asked=f"min_isolation={options.min_isolation!r}",
                hint="say durable=True as well",
            )
        if options.gang > 1:
            raise BadRequest("a session task is no gang", asked=f"gang={options.gang}", hint="say durable=True as well")
        from .pickling import arguments, function_code

        environment = options.environment or self._environment
        if environment is not None:
            environment.spec()  # what is wrong with it is said here
        session = self._session if self._session is not None and not self._shut else self._open_session()
        code = function_code(fn, session.objects)
        if options.name is not None:
            code = code._replace(name=options.name)
        inputs: dict[LazyFuture[Any], int] = {}
        packed = arguments(args, dict(kwargs), inputs, session.objects)
        return session.submit(code, packed.body, options, tuple(inputs), stream, packed.held)

    def put(self, value: T) -> Ref[T]:
        """Keep a value in the object store for as long as anybody refers to it, and this client lives.

        Raises ObjectStoreFull, UnpicklableFunction, NotSupported where there is no store, HostUnreachable.
        """
        from .kept_values import put

        return put(value, self._open_session().objects)

    @overload  # type: ignore[override]  # dask's get has other arguments
    def get(self, graph: Ref[T], keys: None = None, /, *, timeout: float | None = None) -> T: ...

    @overload
    def get(self, graph: Iterable[Ref[T]], keys: None = None, /, *, timeout: float | None = None) -> list[T]: ...

    @overload
    def get(self, graph: Any, keys: Any, /, **_: Any) -> Any: ...

    def get(self, graph: Any, keys: Any = None, /, *, timeout: float | None = None, **words: Any) -> Any:
        """The value of a reference, or those of several, in order. Raises ObjectLost; TimeoutError after *timeout* s.

        With *keys*, the values of these in a dask graph (``dask.compute(x, scheduler=client)``).
        """
        if keys is not None:
            return FunctionCalls.get(self, graph, keys, **words)
        from .kept_values import get

        return get(graph, timeout)

    def run(
        self,
        /,
        command: Sequence[str],
        *,
        check: bool = False,
        stdin: bytes | None = None,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> CommandResult:
        """Run a command as a job and wait for its end. *check*: raise TaskFailed (or why it did not run) unless 0.

        Options as for submit; *timeout* bounds each attempt. Interrupting the wait leaves the job running.
        """
        wanted = self._command_job(command, cwd, {**options, "timeout": timeout})
        job_id = self.submit_job(stdin=stdin, **wanted)["job_id"]
        job = self.wait(job_id)
        if check and job["state"] != "succeeded":
            from .durable import failure_of

            raise failure_of(job)
        last = deciding_attempt(job)
        return CommandResult(
            job_id,
            job["state"],
            last.get("exit_code"),
            last.get("signal"),
            self._output(job_id, "stdout"),
            self._output(job_id, "stderr"),
            job,
        )

    def cancel(self, work: Future[Any] | str, *, force: bool = False, cooperative: bool = False) -> bool:
        """Cancel a task's future, a JobFuture or a job id; ``True`` when it will not give a value.

        A session task that runs is stopped only with *force*: its worker is killed, other tasks there go elsewhere;
        *cooperative* tells it to stop, which it may heed (``actorgrid.current_task().cancelled``).
        """
        from .futures import JobFuture, TaskFuture

        if isinstance(work, str):
            job = self.http.post(f"/api/jobs/{segment(work)}/cancel", repeat=True)
            return bool(
                job["state"] == "cancelled" or (job.get("cancel_requested") and job["state"] not in FINAL_STATES)
            )
        if force and isinstance(work, TaskFuture) and self._session is not None:
            return self._session.kill(work)
        if isinstance(work, (JobFuture, TaskFuture)):
            return work.cancel(cooperative=cooperative)
        raise BadRequest("not work of this client", asked=type(work).__name__, hint="give a future or a job id")

    def actor(self, name: str) -> ActorHandle[Any]:
        """The actor to which a client of this user gave that name. Raises NoSuchActor, NotSupported, BadRequest."""
        from .actor_names import find

        return find(self, name)

    # -- light processes over hosts

    def start_shards(
        self, group: str, count: int, root: Any = None, *args: Any, patience_s: float = 8.0, **options: Any
    ) -> LightShards:
        """Begin a set of *count* shards of light processes, placed as jobs are, each with the process *root*.

        A shard whose host is lost is begun again elsewhere, with its root. *options* are those of detached actors:
        ``cpus`` (0.5), ``gpus``, ``max_isolation_s``, ``checkpoint_every_s``. *patience_s*: how long a link between two
        of them may be silent. Raises BadRequest, NameTaken, and what creating an actor raises.
        """
        from .light_shards import start_shards

        return start_shards(self, group, count, root, args, patience_s, options)

    def shards(self, group: str) -> LightShards:
        """The set of shards of that name. Raises NoSuchActor, CallTimeout while its first shard is begun again."""
        from .light_shards import find_shards

        return find_shards(self, group)

    def whereis(self, name: str, group: str) -> ProcessRef | None:
        """The light process that has the name, in the set *group*; ``None`` when nobody has. Raises as ``shards``."""
        return self.shards(group).whereis(name)

    # -- locks

    def lock(
        self,
        name: str,
        *,
        ttl_s: float = 10.0,
        slots: int = 1,
        wait_s: float | None = None,
        on_lost: OnLost | None = None,
    ) -> Lock:
        """A lock of the cluster: ``with client.lock("name") as lock:``; ``lock.token`` is the fencing token.

        *ttl_s* (0.5 to 86,400) after its last renewal a holder that is gone loses it; *wait_s*: how long ``acquire``
        and ``with`` wait (``None``: whenever); *on_lost* is called with the LockLost that ends a holding. Nothing is
        asked before it is acquired.
        """
        from .locks import Lock

        return Lock(self.lock_terms(name, ttl_s, slots, wait_s, on_lost))

    def semaphore(self, name: str, slots: int, **terms: Any) -> Lock:
        """A lock that *slots* (1 to 1,000) may hold at once; further terms as for ``lock``."""
        return self.lock(name, slots=slots, **terms)

    def lock_terms(
        self, name: str, ttl_s: float, slots: int, wait_s: float | None, on_lost: OnLost | None
    ) -> LockTerms:
        """The terms of a lock, for Lock and AsyncLock. Raises BadRequest for a name that cannot be one."""
        from .locks import HeldLocks, LockTerms

        with self._lock:
            self._usable()
            if self._holds is None:
                self._holds = HeldLocks(self.http)
            return LockTerms(self._holds, name, ttl_s, slots, wait_s, on_lost)

    # -- jobs

    def submit_job(self, /, **request: Any) -> dict[str, Any]:
        """Have a job accepted: fields of TaskRequest. ``{"job_id", "duplicate"}``, committed when it returns.

        Sent again with the same ``task_id`` it stays one job.
        """
        request.setdefault("task_id", uuid.uuid4().hex)
        fields = {name: value for name, value in request.items() if value is not None}
        accepted: dict[str, Any] = self.http.post("/api/jobs", fields, repeat=True)
        return accepted

    def job(self, job_id: str, wait_s: float = 0.0) -> dict[str, Any]:
        """One job, when it is final or *wait_s* have passed. Raises UnknownJob."""
        job: dict[str, Any] = self.http.get(
            f"/api/jobs/{segment(job_id)}", wait_s=wait_s or None, timeout_s=wait_s + 30.0
        )
        return job

    def wait(self, job_id: str, timeout: float | None = None) -> dict[str, Any]:
        """The job once it is final. Raises TimeoutError after *timeout* seconds, UnknownJob.

        Inside of work: NoRoomForNestedTask when it waits for nothing but the room of the job or task that asks.
        """
        until = None if timeout is None else time.monotonic() + timeout
        unreachable_since = 0.0
        step_s = LOOK_S if inside_work() else WAIT_STEP_S
        while True:
            left = step_s if until is None else min(step_s, until - time.monotonic())
            try:
                job = self.job(job_id, max(0.0, left))
                unreachable_since = 0.0
                if job["state"] in FINAL_STATES:
                    return job
                hopeless = never_starts(self.http, job_id) if job["state"] == "queued" else None
                if hopeless is not None:
                    raise hopeless
            except HostUnreachable:  # the agent restarts: the job is still there afterwards
                now = time.monotonic()
                unreachable_since = unreachable_since or now
                if self._closed or now - unreachable_since > WAIT_STEP_S:
                    raise
                time.sleep(0.25)
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"job {job_id} is not final after {timeout:g} s")

    def job_future(self, job_id: str) -> JobFuture[Any]:
        """A future for a function job that exists already."""
        return self._jobs().attach(job_id)

    def why(self, job_id: str) -> dict[str, Any]:
        """Why a job is where it is: ``{"state", "reasons", "next_step"}``."""
        answer: dict[str, Any] = self.http.get(f"/api/jobs/{segment(job_id)}/why")
        return answer

    def files(self, job_id: str, *, attempt: int | None = None, rank: int = 0) -> list[JobFile]:
        """What a job kept of its directory (``outputs=``). Raises UnknownJob, NotFound, WrongState, ResultGone."""
        from .job_files import JobFiles

        return list(JobFiles(self.http, job_id, attempt, rank).listed())

    def fetch(
        self,
        job_id: str,
        path: str = "",
        to: str | os.PathLike[str] = ".",
        *,
        attempt: int | None = None,
        rank: int = 0,
    ) -> list[Path]:
        """Write what a job kept below the folder *to*: all, or the file or folder *path*; gives where.

        Raises what ``files`` raises, HostUnreachable, StorageError.
        """
        from .job_files import JobFiles

        return JobFiles(self.http, job_id, attempt, rank).fetch(path, to)

    def result(self, job_id: str, timeout: float | None = None) -> Any:
        """The value of a function job, waiting for it. Raises what it raised, ResultGone, TimeoutError."""
        from .durable import failure_of, value_of_result

        job = self.wait(job_id, timeout)
        if job["kind"] != "function":
            raise WrongState("a command gives no value", asked=job_id, hint="see its exit_code, or client.logs()")
        if job["state"] == "cancelled":
            raise failure_of(job)
        data = self.http.get(f"/api/jobs/{segment(job_id)}/result")
        if not isinstance(data, bytes):
            raise ResultGone("the job left no result", asked=job_id)
        return value_of_result(data)

    # -- its own life

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work, and close when the session tasks that are unfinished have ended. Jobs go on.

        With *wait* it returns when that is done. With *cancel_futures* tasks that have not started are cancelled.
        At the end of the interpreter what is still unfinished is cancelled.
        """
        with self._lock:
            self._shut = True
            session = self._session
        if session is None:
            self.close()
            return
        if cancel_futures:
            session.cancel_waiting()
        if wait:
            session.wait_until_done()
            self.close()
        else:
            threading.Thread(target=self.shutdown, name="actorgrid-shutdown", daemon=True).start()

    def close(self) -> None:
        """Cancel unfinished session tasks, give leases and locks back, close connections. Again: harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = self._shut = True
            session, durable, holds = self._session, self._durable, self._holds
        _open_clients.discard(self)
        if holds is not None:
            holds.close()
        if durable is not None:
            durable.close()
        if session is not None:
            session.close()
        self.http.close()

    def __enter__(self) -> Client:
        push_default(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pop_default(self)
        if kind is None:
            self.shutdown()
        else:
            self.close()

    def __repr__(self) -> str:
        return f"<actorgrid.Client {self.url}{' closed' if self._closed else ''}>"

    def _open_session(self) -> Session:
        from .dropped import when_dropped
        from .session import Session

        with self._lock:
            self._usable()
            if self._session is None:
                where: dict[str, Any] = {"working_dir": self._working_dir, "environment": self._environment}
                self._session = Session(self.http, **where, **self._session_options)
                when_dropped(self, self._session.finish)
            return self._session

    def _jobs(self) -> DurableJobs:
        from .dropped import when_dropped
        from .durable import DurableJobs

        with self._lock:
            self._usable()
            if self._durable is None:
                self._durable = DurableJobs(self.http, self._working_dir, self._environment)
                when_dropped(self, self._durable.finish)
            return self._durable

    def _usable(self) -> None:
        if self._shut:
            raise ClientClosed("the client is closed", hint="make another with actorgrid.connect()")

    def _output(self, job_id: str, stream: str) -> bytes:
        return b"".join(self.logs(job_id, stream))


def connect(
    url: str | Sequence[str] | None = None,
    token: str | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    ca_fingerprint: str | None = None,
    **options: Any,
) -> Client:
    """A client of the host at *url*, of ``ACTORGRID_URL``, or of the agent on *data_dir* (or the default directory).

    Several URLs, in a list or separated by commas, are hosts of one cluster: the client speaks to one that answers and
    moves on when it is lost. *ca_fingerprint* (or ``ACTORGRID_CA_FINGERPRINT``) says by which authority hosts behind
    https are known; without it, they are by those of the system. Further options as for Client.

    Raises HostUnreachable when no host answers, WrongToken when it does not take the token, CertificateRefused when it
    is not the cluster's.
    """
    if url is not None and not isinstance(url, str):
        url = ",".join(url)
    found_url, found_token = locate(data_dir, url, token)
    client = Client(found_url, found_token, ca_fingerprint=fingerprint(ca_fingerprint), **options)
    try:
        client.http.get("/api/members")
    except BaseException:
        client.close()
        raise
    return client


_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for client in list(_open_clients):
        client.close()
