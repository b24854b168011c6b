"""What work may ask for, and the body of the request that says so, in one place for clients and command line."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from actorgrid.amounts import unclear_memory
from actorgrid.balancing.targets import MAX_KEY_CHARS, balancing_policy
from actorgrid.configs.balancing_policy import BalancingPolicy
from actorgrid.container_words import is_container, mount_of
from actorgrid.errors import BadRequest
from actorgrid.isolation_words import checked_min_isolation
from actorgrid.output_paths import OUTPUTS_MAX, inside
from actorgrid.python_environment import VARIABLE as ENVIRONMENT_VARIABLE
from actorgrid.secret_words import is_wishes
from actorgrid.task_context import LENT_CPU_MILLI, SESSION_RETRIES

from .user import user_name

if TYPE_CHECKING:
    import os
    from datetime import datetime

    from .environment import Environment

WORKER_LOSSES = SESSION_RETRIES
JOB_NAME_MAX = 200
MAX_CHECKED_OPTIONS = 256
_IN_BODY = {"gpu_memory": "gpu_memory_bytes", "memory": "memory_bytes", "timeout": "max_execution_time_s"}
"""What the body calls by another name: it has units in its names."""
_NOT_IN_BODY = ("durable", "shape", "balancing", "affinity", "pure", "environment", "python")
_OF_CONTAINER = ("container", "mounts", "container_runtime")


def _body(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The options as fields of a request's body.

    What is as it is by default is left out: so a host of an earlier version takes what asks for nothing newer.
    """
    body: dict[str, Any] = {}
    for name, value in asked.items():
        if name in _NOT_IN_BODY or name in _OF_CONTAINER or value is None or value == getattr(DEFAULTS, name):
            continue
        if isinstance(value, Mapping):
            value = dict(value)
        elif isinstance(value, Iterable) and not isinstance(value, str):
            value = list(value)
        elif hasattr(value, "isoformat"):
            value = value.isoformat()
        elif name == "deadline":
            name = "deadline_s"
        body[_IN_BODY.get(name, name)] = value
    return body


def _known_isolation(text: str) -> str:
    """The least isolation in the one spelling. Raises BadRequest."""
    try:
        return checked_min_isolation(text)
    except ValueError as error:
        raise BadRequest(str(error), asked=f"min_isolation={text!r}"[:200]) from error


class WorkerShape(NamedTuple):
    """What a worker must have: tasks of one shape share workers. Sizes are as the user wrote them."""

    gpus: float = 0.0
    gpu_memory: int | str = 0
    cpus: float = 1.0
    memory: int | str = 0
    pool: str | None = None
    gpu_models: tuple[str, ...] = ()
    gpu_affinity: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    environment: Environment | None = None
    gpu_profile: str = ""
    gpu_topology: str = ""

    @property
    def pool_name(self) -> str:
        """The pool of its workers, as the host chooses it."""
        return "gpu_compute" if self.gpus else self.pool or "general"

    def lease_request(
        self, python: str, wait_s: float, lease_id: str, lent_cpus: float = 0.0, environment: str = ""
    ) -> dict[str, Any]:
        """The body of a lease request; asked again with the same id it gives the same lease.

        *lent_cpus* are held already, by the task that waits for what will run there, and are not asked for again.
        *environment*: the digest of the Python environment that its worker is to be of, and then of no other.
        """
        env, lent_cpus = dict(self.env), min(self.cpus, lent_cpus)
        if environment:
            env[ENVIRONMENT_VARIABLE], python = environment, ""
        if lent_cpus:
            env[LENT_CPU_MILLI] = str(round(lent_cpus * 1000))
            env.setdefault("OMP_NUM_THREADS", str(max(1, int(self.cpus))))
        asked = {**self._asdict(), "env": env or None, "cpus": self.cpus - lent_cpus}
        return {**_body(asked), "python": python, "wait_s": wait_s, "lease_id": lease_id}


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of a function's run.

    * ``gpus``: a share of one GPU (below 1) or a whole number; ``gpu_memory``: on each, ``"2GiB"`` or bytes;
      ``gpu_models``, ``gpu_affinity``: acceptable models, acceptable device UUIDs; ``gpu_profile``: in place of
      ``gpus``, one MIG instance of this profile, ``"3g.40gb"``; ``gpu_topology``: every two of its GPUs as close as
      that, ``"nvlink"``, ``"pix"``, ``"pxb"``, ``"phb"`` or ``"node"``
    * ``cpus``, ``memory``: of the host
    * ``priority``: 0 to 100, higher first (among this client's session tasks, or among all jobs)
    * ``retries``: for a session task, how often it may lose its worker (3 unless said); for a durable one, how many
      further attempts a failure gets (0 unless said)
    * ``timeout``: seconds one attempt may take
    * ``deadline``: when it is to be done: seconds from now, or a datetime with its zone; ``preemptible``: whether it
      may be stopped so that another can start, ``grace_s``: with how much time from SIGTERM to SIGKILL; jobs only
      (durable, ``run``): sessions are never preempted
    * ``max_isolation_s``: how long it goes on on a host that is cut off, and so, when at the earliest it is started
      elsewhere; jobs only
    * ``gang``: so many members that start together or not at all, each with these resources and its rank in ``RANK``;
      ``spread``: each on a host of its own; jobs only. The value of a function is that of rank 0
    * ``min_isolation``: only on hosts that enforce no less: ``"kernel"``, ``"files=kernel,memory=kernel"``; jobs only
    * ``pool``: ``gpu_compute``, ``cpu_intensive``, ``io_bound`` or ``general``
    * ``env``: environment variables; or a Python environment that is built on its host: the path of a requirements file
      or a ``uv.lock``, a list of requirements, an ``actorgrid.Environment``. ``python``: the version that it is of
    * ``annotations``: what to note about a job, texts by name (64, 4,096 bytes in all); jobs only
    * ``labels``: words by which a job is found (``client.jobs(labels={"team": "vision"})``); jobs only
    * ``stop_when_idle_s``: a job is ended once all its GPUs have been idle for so many seconds; jobs only
    * ``notify``: whom a job tells of its states: ``"webhook:https://..."``, ``"mail:ann@example.org"``, or a target's
      name that the cluster has; ``notify_on``: of which: ``started``, ``requeued``, ``succeeded``, ``failed``,
      ``cancelled``, ``lost``, or ``ended`` for the last four, as it is unless said; jobs only (docs/notifications.md)
    * ``secrets``: what a job is given of ``actorgrid secret``: ``"NAME"``, a file of that name in the folder
      ``ACTORGRID_SECRETS``, or ``"NAME:VARIABLE"``; jobs only (docs/secrets.md)
    * ``durable``: a job, accepted when it is on disk, which survives the client; else a session task
    * ``balancing``: which of the session's workers gets the task, if several have room: ``least_loaded``,
      ``round_robin``, ``weighted_round_robin`` (by speed), ``capability_based`` or ``affinity_aware``; session tasks
      only. ``affinity``: tasks of one such key go to one worker while it has room (what it has in memory is there);
      with it, ``balancing`` is ``affinity_aware`` unless said
    * ``pure``: called again with the same arguments it gives the same and does nothing else, so that a large value of
      it that was lost with its host's object store is made again; session tasks only
    * ``outputs``: files and folders, relative to its directory, that a job's host keeps when it ends
      (``client.fetch``); jobs only
    * ``container``: the image of a container that a command runs in, ``mounts``: ``"/data:/data:ro"``,
      ``container_runtime``: ``apptainer``, ``podman`` or ``docker``; ``run`` only (docs/containers.md)
    * ``depends_on``: jobs (or their ids) that must succeed first; durable only
    """

    gpus: float = 0.0
    gpu_memory: int | str = 0
    cpus: float = 1.0
    memory: int | str = 0
    gpu_models: Sequence[str] = ()
    gpu_affinity: Sequence[str] = ()
    gpu_profile: str = ""
    gpu_topology: str = ""
    priority: int = 50
    retries: int | None = None
    timeout: float | None = None
    deadline: float | datetime | None = None
    preemptible: bool = True
    grace_s: float | None = None
    max_isolation_s: float | None = None
    gang: int = 1
    spread: bool = False
    min_isolation: str = ""
    pool: str | None = None
    env: Mapping[str, str] | Environment | str | os.PathLike[str] | Sequence[str] | None = None
    python: str | None = None
    annotations: Mapping[str, str] | None = None
    labels: Mapping[str, str] | None = None
    stop_when_idle_s: float | None = None
    notify: str | Sequence[str] = ()
    notify_on: str | Sequence[str] = ()
    secrets: Sequence[str] = ()
    durable: bool = False
    name: str | None = None
    depends_on: Sequence[Any] = ()
    balancing: str | None = None
    affinity: str = ""
    pure: bool = False
    outputs: Sequence[str] = ()
    container: str | None = None
    mounts: Sequence[str] = ()
    container_runtime: str | None = None
    shape: WorkerShape = field(init=False, compare=False, repr=False)
    environment: Environment | None = field(init=False, compare=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if self.python or not (self.env is None or isinstance(self.env, Mapping)):
            from .environment import environment_from

            environment = environment_from(self.env, self.python)
            object.__setattr__(self, "environment", environment)
        variables = self.variables
        if not 0 <= self.priority <= 100:
            raise BadRequest("a priority is from 0 to 100", asked=str(self.priority))
        if self.timeout is not None and not 0 < self.timeout < 1e9:
            raise BadRequest("a timeout is a number of seconds above 0", asked=str(self.timeout))
        if self.retries is not None and not 0 <= self.retries <= 100:
            raise BadRequest("retries are from 0 to 100", asked=str(self.retries))
        self._check_times()
        for name in ("gpu_memory", "memory"):
            unclear = unclear_memory(getattr(self, name))
            if unclear:
                raise BadRequest(f"{name}: {unclear}", asked=f"{name}={getattr(self, name)!r}")
        if self.depends_on and not self.durable:
            raise BadRequest(
                "a session task cannot wait for jobs", asked="depends_on=", hint="say durable=True as well"
            )
        if self.outputs:
            self._check_outputs()
        if self.notify or self.notify_on:
            self._check_notify()
        if self.secrets and (not self.durable or not is_wishes(list(self.secrets)) or isinstance(self.secrets, str)):
            raise BadRequest(
                "secrets are for jobs: a list of NAME or NAME:VARIABLE, each once",
                asked=f"secrets={self.secrets!r}"[:200],
                hint="say durable=True as well, or client.run",
            )
        if self.pure and self.durable:
            raise BadRequest("pure is for session tasks", asked="durable=True", hint="a job's value is on the disk")
        if self.container is not None or self.mounts or self.container_runtime is not None:
            self._check_container()
        if not 1 <= self.gang <= 256 or (self.spread and self.gang == 1):
            raise BadRequest("a gang has 2 to 256 members", asked=f"gang={self.gang}", hint="spread= is for gangs only")
        if self.min_isolation:
            object.__setattr__(self, "min_isolation", _known_isolation(self.min_isolation))
        if self.balancing is not None or self.affinity:
            self._check_balancing()
        shape = WorkerShape(
            self.gpus or float(bool(self.gpu_profile)),
            self.gpu_memory,
            self.cpus,
            self.memory,
            self.pool,
            tuple(self.gpu_models),
            tuple(self.gpu_affinity),
            tuple(sorted(variables.items())) if variables else (),
            self.environment,
            self.gpu_profile,
            self.gpu_topology,
        )
        object.__setattr__(self, "shape", shape)

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables that were asked for."""
        if self.environment is not None:
            return self.environment.variables
        return self.env if isinstance(self.env, Mapping) else {}

    def with_variables(self, **further: str) -> TaskOptions:
        """The same options with further environment variables."""
        variables = {**self.variables, **further}
        return replace(self, env=variables if self.environment is None else self.environment.with_variables(variables))

    def _check_balancing(self) -> None:
        if self.durable:
            raise BadRequest(
                "balancing and affinity are for session tasks",
                asked="durable=True",
                hint="jobs are placed by the scheduler: gpu_affinity=, pool=",
            )
        if len(self.affinity) > MAX_KEY_CHARS:
            raise BadRequest(
                "affinity is a short text", asked=f"{len(self.affinity)} characters", hint=f"{MAX_KEY_CHARS} at most"
            )
        if self.balancing is None:
            object.__setattr__(self, "balancing", BalancingPolicy.AFFINITY_AWARE.value)
        balancing_policy(str(self.balancing))

    def _check_container(self) -> None:
        if self.container is None:
            raise BadRequest("mounts and container_runtime are of a container", hint="say container='IMAGE' as well")
        if not is_container(self._container()):
            raise BadRequest(
                "that is no container",
                asked=f"container={self.container!r}, mounts={list(self.mounts)!r}"[:200],
                hint="container='docker.io/library/python:3.12', mounts=['/data:/data:ro'], container_runtime='podman'",
            )

    def _container(self) -> dict[str, Any]:
        wish: dict[str, Any] = {"image": self.container}
        if self.container_runtime is not None:
            wish["runtime"] = self.container_runtime
        if self.mounts:
            wish["mounts"] = [mount_of(text) for text in self.mounts]
        return wish

    def _check_outputs(self) -> None:
        if not self.durable:
            raise BadRequest(
                "outputs are kept of jobs", asked="outputs=", hint="say durable=True as well, or client.run"
            )
        if isinstance(self.outputs, str):
            raise BadRequest("outputs is a list of paths", asked=repr(self.outputs)[:80], hint="outputs=['results']")
        wrong = [path for path in self.outputs if not isinstance(path, str) or inside(path) is None]
        if wrong or len(self.outputs) > OUTPUTS_MAX:
            raise BadRequest(
                f"outputs are up to {OUTPUTS_MAX} paths inside of the job's directory",
                asked=repr(wrong[:3])[:200] if wrong else f"{len(self.outputs)} paths",
                hint="write them relative to it: outputs=['results', 'model.pt']",
            )

    def _check_notify(self) -> None:
        from actorgrid.notification_words import TARGETS_MAX, checked_targets, events_of

        if not self.durable:
            raise BadRequest(
                "only jobs tell of their states", asked="notify=", hint="say durable=True as well, or client.run"
            )
        targets = [self.notify] if isinstance(self.notify, str) else list(self.notify)
        words = [self.notify_on] if isinstance(self.notify_on, str) else list(self.notify_on)
        if not targets:
            raise BadRequest(
                "notify_on without notify", asked=f"notify_on={words!r}"[:200], hint="say whom it is to tell"
            )
        try:
            object.__setattr__(self, "notify", tuple(checked_targets(targets)))
            object.__setattr__(self, "notify_on", tuple(events_of(words)))
        except ValueError as error:
            raise BadRequest(f"notify: {error}", asked=f"notify={targets!r}, notify_on={words!r}"[:200]) from None
        if len(self.notify) > TARGETS_MAX:
            raise BadRequest("too many targets", asked=f"{len(self.notify)}", found=f"{TARGETS_MAX} at most")

    def _check_times(self) -> None:
        if self.grace_s is not None and not 0 <= self.grace_s <= 3600:
            raise BadRequest("a grace is from 0 to 3600 seconds", asked=str(self.grace_s))
        if self.max_isolation_s is not None and not 3 <= self.max_isolation_s <= 86_400:
            raise BadRequest(
                "max_isolation_s is from 3 to 86400 seconds",
                asked=str(self.max_isolation_s),
                hint="less gains nothing: a host renews its lease once a second, and the leader waits 3 s at least",
            )
        if isinstance(self.deadline, (int, float)) and not 0 < self.deadline <= 1e9:
            raise BadRequest("a deadline is a number of seconds from now, above 0", asked=str(self.deadline))
        if self.deadline is not None and hasattr(self.deadline, "utcoffset") and self.deadline.utcoffset() is None:
            raise BadRequest(
                "a deadline without a time zone", asked=str(self.deadline), hint="datetime.now().astimezone() has one"
            )

    def job_request(self, inputs: Iterable[str] = (), **work: Any) -> dict[str, Any]:
        """The body of a request for a job that does *work* (its kind, and what is to run) after *inputs*, other jobs.

        Its id is made here, so that sent twice it is one job.
        """
        after = [str(getattr(item, "job_id", item)) for item in self.depends_on]
        asked = {name: getattr(self, name) for name in OPTION_NAMES} | {"env": self.variables or None}
        return {
            "task_id": uuid.uuid4().hex,
            "user_id": user_name(),
            **_body({**asked, "depends_on": tuple(dict.fromkeys([*inputs, *after]))}),
            **({} if self.container is None else {"container": self._container()}),
            **work,
            "name": str(self.name or work.get("name", ""))[:JOB_NAME_MAX],
        }

    def changed(self, **changes: Any) -> TaskOptions:
        """The same options but for *changes*. Raises BadRequest on one that does not exist."""
        check_option_names(changes)
        return replace(self, **changes)

    @property
    def worker_losses(self) -> int:
        """The number of workers that a session task may lose."""
        return WORKER_LOSSES if self.retries is None else self.retries


DEFAULTS = TaskOptions()
OPTION_NAMES = tuple(name for name, each in TaskOptions.__dataclass_fields__.items() if each.init)


_checked: dict[tuple[tuple[str, Any], ...], TaskOptions] = {}


def options_of(changes: dict[str, Any]) -> TaskOptions:
    """Options from keyword arguments; the same again is found again. Raises BadRequest on one that does not exist."""
    if not changes:
        return DEFAULTS
    asked = tuple(changes.items())
    try:
        found = _checked.get(asked)
    except TypeError:  # a list or a mapping among them
        check_option_names(changes)
        return TaskOptions(**changes)
    if found is None:
        check_option_names(changes)
        found = TaskOptions(**changes)
        if len(_checked) >= MAX_CHECKED_OPTIONS:
            _checked.clear()
        _checked[asked] = found
    return found


def check_option_names(changes: Mapping[str, Any]) -> None:
    """Raise BadRequest when a keyword argument is no option, with the nearest that is."""
    for name in changes:
        if name not in OPTION_NAMES:
            import difflib

            near = difflib.get_close_matches(name, OPTION_NAMES, 1)
            raise BadRequest(
                f"there is no option {name!r}",
                asked=f"{name}={changes[name]!r}",
                found="options: " + ", ".join(OPTION_NAMES),
                hint=f"did you mean {near[0]}?" if near else "check the spelling",
            )
